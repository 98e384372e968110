//! Several futures in one task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Does so many of these at a time, and gives what came of them in their order. They begin in that order, too.
///
/// # Panics
/// With none at a time.
pub async fn together<F: Future>(futures: impl IntoIterator<Item = F>, at_once: usize) -> Vec<F::Output> {
    assert!(at_once > 0, "none of them would ever begin");
    let mut waiting = futures.into_iter().fuse();
    let mut running: Vec<(usize, Pin<Box<F>>)> = Vec::with_capacity(at_once);
    let mut outputs: Vec<Option<F::Output>> = Vec::new();
    poll_fn(|context| {
        loop {
            while running.len() < at_once
                && let Some(future) = waiting.next()
            {
                running.push((outputs.len(), Box::pin(future)));
                outputs.push(None);
            }
            let before = running.len();
            running.retain_mut(|(at, future)| match future.as_mut().poll(context) {
                Poll::Ready(output) => {
                    outputs[*at] = Some(output);
                    false
                }
                Poll::Pending => true,
            });
            if running.is_empty() && before < at_once {
                return Poll::Ready(());
            }
            if running.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await;
    outputs.into_iter().map(|output| output.expect("each was polled to its end")).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn so_many_at_a_time_and_in_their_order() {
        // Those that are divided by three are done at once, the others in the turn that they are let go in.
        let (under_way, most, begun, open) = (Cell::new(0), Cell::new(0), RefCell::new(Vec::new()), Cell::new(false));
        let one = |number: usize| {
            let (under_way, most, begun, open) = (&under_way, &most, &begun, &open);
            async move {
                begun.borrow_mut().push(number);
                under_way.set(under_way.get() + 1);
                most.set(most.get().max(under_way.get()));
                poll_fn(|_| if number.is_multiple_of(3) || open.get() { Poll::Ready(()) } else { Poll::Pending }).await;
                under_way.set(under_way.get() - 1);
                number * number
            }
        };
        let mut all = pin!(together((0..20).map(one), 4));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(all.as_mut().poll(context).is_pending());
        assert_eq!((&begun.borrow()[..], under_way.get()), (&[0, 1, 2, 3, 4, 5][..], 4));
        open.set(true);
        let Poll::Ready(squares) = all.as_mut().poll(context) else { panic!("nothing is waited for any more") };
        assert_eq!(squares, (0..20).map(|number| number * number).collect::<Vec<_>>());
        assert_eq!((begun.take(), most.get()), ((0..20).collect(), 4));
    }

    #[test]
    fn none_and_as_many_as_at_a_time() {
        let context = &mut Context::from_waker(Waker::noop());
        for count in 0..6 {
            let Poll::Ready(all) = pin!(together((0..count).map(std::future::ready), 2)).poll(context) else { panic!("{count}") };
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }
}
