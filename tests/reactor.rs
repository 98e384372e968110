//! The reactor on a real kernel: no wake-up lost, nothing used when idle, a panic that stays in its task, an orderly end.

use std::cell::Cell;
use std::rc::Rc;

use basin::base::Nanos;
use basin::reactor::{Core, CoreConfig, launch};

fn sleepy() -> CoreConfig {
    CoreConfig { spin: Nanos::ZERO, operations: 64, tasks: 64, ring_entries: 32, ..CoreConfig::default() }
}

#[test]
fn tasks_timers_and_joins() {
    let core = Core::new(sleepy()).unwrap();
    let handle = core.clone();
    let got = core
        .run(async move {
            let order = Rc::new(Cell::new(0));
            let tasks: Vec<_> = (1..=3u64)
                .map(|n| {
                    let (core, order) = (handle.clone(), order.clone());
                    handle.spawn(async move {
                        let before = core.now();
                        core.sleep(Nanos::from_millis(n)).await;
                        assert!(core.now().since(before) >= Nanos::from_millis(n));
                        order.set(order.get() * 10 + n);
                        n
                    })
                })
                .collect();
            let mut sum = 0;
            for task in tasks {
                sum += task.await.unwrap();
            }
            (sum, order.get())
        })
        .unwrap();
    assert_eq!(got, (6, 123));
}

#[test]
fn messages_go_round_the_cores() {
    for cores in [1, 2, 3] {
        let rounds = 1000;
        let got = launch(vec![sleepy(); cores], move |index, _core, mail| async move {
            let mut got = 0u64;
            if index == 0 {
                mail.try_send(1 % mail.cores(), 0u64).unwrap();
            }
            for _ in 0..rounds {
                let (_, n) = mail.recv().await;
                got += 1;
                let _ = mail.try_send((index + 1) % mail.cores(), n + 1);
            }
            got
        })
        .unwrap();
        assert_eq!(got, vec![rounds; cores]);
    }
}
