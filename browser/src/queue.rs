//! What waits for a task of this thread.

use crate::link::Bell;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// A queue between tasks of one thread. Bounded by what is put in: one result for each job, one command for each click.
pub struct Queue<T>(Rc<(RefCell<VecDeque<T>>, Bell)>);

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self(Rc::new((RefCell::new(VecDeque::new()), Bell::default())))
    }
}

impl<T> Queue<T> {
    /// Appends.
    pub fn push(&self, item: T) {
        self.0.0.borrow_mut().push_back(item);
        self.0.1.ring();
    }

    /// Takes the first, once there is one. Dropping the future loses nothing.
    pub async fn next(&self) -> T {
        self.0.1.until(|| self.0.0.borrow_mut().pop_front()).await
    }
}
