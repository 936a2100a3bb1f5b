//! Divides work among the processor's cores. The result does not depend on their number.

use std::num::NonZeroUsize;
use std::thread::{available_parallelism, scope};

/// The results for these items, in their order.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = available_parallelism().map_or(1, NonZeroUsize::get);
    let part = items.len().div_ceil(threads).max(1);
    let work = &work;
    let of = |items: &[T]| items.iter().map(work).collect::<Vec<R>>();
    if items.len() <= part {
        // Also where there are no threads.
        return of(items);
    }
    scope(|scope| {
        let parts: Vec<_> = items
            .chunks(part)
            .map(|items| scope.spawn(move || of(items)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Vec<R>>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        parts.into_iter().flat_map(join).collect()
    })
}
