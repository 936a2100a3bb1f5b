//! A stream whose reader must keep up, so that nobody holds a connection by reading slowly. A reader that takes next to nothing is
//! cut off.
//!
//! It must not know the content.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// The least speed of a reader.
#[derive(Clone, Copy, Debug)]
pub struct Hurry {
    /// Bytes that it must take while some wait for it,
    pub bytes: usize,
    /// in this time.
    pub time: Duration,
}

/// The stream.
pub struct Hurried<S> {
    stream: S,
    hurry: Hurry,
    /// Since the reader has been waited for.
    waiting: Option<Waiting>,
}

struct Waiting {
    until: Pin<Box<Sleep>>,
    written: usize,
}

impl<S: AsyncWrite + Unpin> Hurried<S> {
    /// Makes the reader at the other end of `stream` keep up.
    pub fn new(stream: S, hurry: Hurry) -> Self {
        Self {
            stream,
            hurry,
            waiting: None,
        }
    }

    /// Judges the reader by what became of a write.
    fn judge(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match (&written, &mut self.waiting) {
            (Poll::Ready(Ok(bytes)), Some(waiting)) => {
                waiting.written += bytes;
                if waiting.written >= self.hurry.bytes {
                    self.waiting = None;
                }
            }
            (Poll::Pending, None) => {
                self.waiting = Some(Waiting {
                    until: Box::pin(sleep(self.hurry.time)),
                    written: 0,
                });
            }
            _ => {}
        }
        let Some(waiting) = &mut self.waiting else {
            return written;
        };
        match waiting.until.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => written,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Hurried<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judge(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        ready!(self.judge(flushed.map_ok(|()| 0), context))?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        ready!(self.judge(shut.map_ok(|()| 0), context))?;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Hurried<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::timeout;

    const HURRY: Hurry = Hurry {
        bytes: 1000,
        time: Duration::from_millis(300),
    };

    /// Writes to a reader that takes `bytes` at a time with a pause between.
    async fn write(bytes: usize, pause: Duration) -> io::Result<()> {
        let (near, mut far) = duplex(100);
        let reading = tokio::spawn(async move {
            let mut some = vec![0; bytes];
            while far.read(&mut some).await.is_ok_and(|read| read > 0) {
                sleep(pause).await;
            }
        });
        let mut near = Hurried::new(near, HURRY);
        let done = timeout(Duration::from_secs(20), near.write_all(&[7; 5000])).await;
        reading.abort();
        done.expect("an end in time")
    }

    #[tokio::test]
    async fn who_reads_too_slowly_is_cut_off() {
        write(100, Duration::from_millis(1)).await.unwrap();
        // A byte now and then is next to nothing.
        for pause in [Duration::from_millis(20), Duration::from_secs(60)] {
            let error = write(1, pause).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
    }

    #[tokio::test]
    async fn what_need_not_wait_takes_as_long_as_it_likes() {
        let (near, mut far) = duplex(100);
        let mut near = Hurried::new(near, HURRY);
        for _ in 0..3 {
            near.write_all(&[7; 50]).await.unwrap();
            far.read_exact(&mut [0; 50]).await.unwrap();
            sleep(HURRY.time).await;
        }
    }
}
