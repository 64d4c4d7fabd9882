//! Limits on what a chat template may use. A template comes out of a model file that nobody vetted,
//! and two faults cannot be caught as a panic: a stack overflow and a failed allocation. So a
//! template runs on a thread of its own with a large stack, and the allocator watches that thread: when
//! it holds too much memory (stack included) or works past its deadline, it is stopped for good inside the allocator
//! and its caller gets an error. Such a thread is never resumed, and what it holds stays allocated;
//! the owner of the template refuses to start another (see `chat_template.rs`), so that a bad
//! template costs one stopped thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{sync_channel, RecvTimeoutError};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// What one run may use.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Most bytes allocated at one time.
    pub live_bytes: i64,
    /// Wall clock of the whole run.
    pub time: Duration,
    /// Bytes of stack. Touched pages only take memory. Values nested as deep as the fuel allows are
    /// printed and dropped recursively, and have to fit.
    pub stack_bytes: usize,
}

/// Why a run ended without a result.
#[derive(Debug, PartialEq, Eq)]
pub enum Stopped {
    /// `live_bytes` was exceeded.
    Memory,
    /// `time` was exceeded.
    Time,
    /// The thread could not be started.
    NoThread(String),
}

const RUNNING: u8 = 0;
const OVER_MEMORY: u8 = 1;
const OVER_TIME: u8 = 2;

struct Budget {
    live: AtomicI64,
    calls: AtomicU32,
    limit: i64,
    /// Address below which the stack may not grow.
    stack_end: AtomicUsize,
    deadline: Instant,
    state: AtomicU8,
}

/// An address in the stack frame of the caller.
fn stack_address() -> usize {
    let marker = 0u8;
    std::hint::black_box(&marker) as *const u8 as usize
}

impl Budget {
    /// The state that the thread has to stop with, once it has `bytes` more.
    fn charge(&self, bytes: i64) -> u8 {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // A recursion without end (values that contain themselves) shows here before the stack is
        // full, also while values are dropped.
        if stack_address() < self.stack_end.load(Ordering::Relaxed) {
            return OVER_MEMORY;
        }
        if bytes <= 0 {
            return RUNNING;
        }
        if live > self.limit {
            return OVER_MEMORY;
        }
        // The clock is read at every 256th call and for each large block.
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        if (calls % 256 == 255 || bytes > 64 * 1024) && Instant::now() > self.deadline {
            return OVER_TIME;
        }
        RUNNING
    }
}

thread_local! {
    static BUDGET: Cell<*const Budget> = const { Cell::new(null()) };
}

/// The system allocator, which watches the threads that `run_limited` starts.
pub struct WatchedAllocator;

fn charge(bytes: i64) {
    let budget = BUDGET.try_with(Cell::get).unwrap_or(null());
    if budget.is_null() {
        return;
    }
    // SAFETY: the thread that set the pointer keeps the budget alive and clears the pointer first.
    let budget = unsafe { &*budget };
    let state = budget.charge(bytes);
    if state != RUNNING {
        budget.state.store(state, Ordering::Release);
        loop {
            // Nothing may be allocated or unwound here, so the thread waits for the process to end.
            // SAFETY: pause() has no preconditions.
            unsafe { libc::pause() };
        }
    }
}

// SAFETY: every call is passed on to System; the bookkeeping touches no allocator state.
unsafe impl GlobalAlloc for WatchedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        charge(layout.size() as i64);
        System.alloc(layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        charge(layout.size() as i64);
        System.alloc_zeroed(layout)
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        charge(-(layout.size() as i64));
        System.dealloc(pointer, layout)
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        charge(new_size as i64 - layout.size() as i64);
        System.realloc(pointer, layout, new_size)
    }
}

/// Runs `job` on a new thread within `limits`. A panic of the job is passed on to the caller.
pub fn run_limited<T: Send + 'static>(
    limits: Limits,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stopped> {
    let budget = Arc::new(Budget {
        live: AtomicI64::new(0),
        calls: AtomicU32::new(0),
        limit: limits.live_bytes,
        stack_end: AtomicUsize::new(0),
        deadline: Instant::now() + limits.time,
        state: AtomicU8::new(RUNNING),
    });
    let (sender, receiver) = sync_channel(1);
    let thread_budget = budget.clone();
    let started = thread::Builder::new()
        .stack_size(limits.stack_bytes)
        .spawn(move || {
            let stack_end = stack_address() - limits.stack_bytes / 4 * 3;
            thread_budget.stack_end.store(stack_end, Ordering::Relaxed);
            BUDGET.with(|cell| cell.set(&*thread_budget));
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            BUDGET.with(|cell| cell.set(null()));
            let _ = sender.send(outcome);
        });
    let thread = started.map_err(|error| Stopped::NoThread(error.to_string()))?;
    // A thread that allocates nothing past its deadline runs on until its fuel is gone.
    let give_up = budget.deadline + Duration::from_millis(500);
    let mut wait = Duration::from_micros(500);
    loop {
        match receiver.recv_timeout(wait) {
            Ok(outcome) => {
                let _ = thread.join();
                return outcome.or_else(|panic| std::panic::resume_unwind(panic));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Stopped::NoThread(
                    "the thread ended without a result".into(),
                ))
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        match budget.state.load(Ordering::Acquire) {
            OVER_MEMORY => return Err(Stopped::Memory),
            OVER_TIME => return Err(Stopped::Time),
            _ if Instant::now() > give_up => return Err(Stopped::Time),
            _ => wait = (wait * 2).min(Duration::from_millis(20)),
        }
    }
}
