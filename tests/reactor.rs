//! The reactor on a real kernel: no wake-up lost, nothing used when idle, a panic that stays in its task, an orderly end.

use std::cell::Cell;
use std::rc::Rc;

use basin::base::Nanos;
use basin::device::socket::{TcpListener, TcpStream};
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

#[test]
fn control_messages_over_tcp() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let core = Core::new(sleepy()).unwrap();
        let (address, handle) = (address.parse().unwrap(), core.clone());
        core.run(async move {
            let listener = TcpListener::bind(handle.uring(), address).unwrap();
            let to = listener.local_addr();
            let server = handle.spawn(async move {
                let mut stream = listener.accept().await.unwrap();
                let line = stream.read_line(100).await.unwrap();
                stream.write_all(format!("{line}, twice {line}\r\n").as_bytes()).await.unwrap();
                let frame = stream.read_frame(1 << 20).await.unwrap();
                stream.write_frame(&frame).await.unwrap();
                // Too long, and then the peer is gone.
                let error = stream.read_frame(10).await.unwrap_err();
                assert!(error.to_string().contains("11 bytes; at most 10"), "{error}");
            });
            let mut stream = TcpStream::connect(handle.uring(), to).await.unwrap();
            stream.write_all(b"hel").await.unwrap();
            // A read that is given up, with its poll, loses nothing.
            assert!(handle.timeout(Nanos::from_millis(5), stream.read_line(100)).await.is_err());
            stream.write_all(b"lo\n").await.unwrap();
            assert_eq!(stream.read_line(100).await.unwrap(), "hello, twice hello");
            // More than the socket buffers hold: both ends must wait to write.
            let big: Vec<u8> = (0..1u32 << 20).map(|i| (i * 7) as u8).collect();
            stream.write_frame(&big).await.unwrap();
            assert_eq!(stream.read_frame(1 << 20).await.unwrap(), big);
            stream.write_frame(b"eleven byte").await.unwrap();
            server.await.unwrap();
            assert!(stream.read_exact(&mut [0]).await.unwrap_err().to_string().contains("closed"));
            let error = TcpStream::connect(handle.uring(), to).await.unwrap_err();
            assert!(error.remedy_text().unwrap().contains("start the server"), "{error}");
            // Every cancelled poll has ended.
            while handle.uring().in_flight() > 0 {
                handle.yield_now().await;
            }
            assert_eq!(handle.ops().occupied(), 0);
        })
        .unwrap();
    }
}
