//! Which processors the calling thread may run on; threads that it starts may run on the same.

/// Processors that a thread cannot be kept to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot run on the processors {cores:?}: {reason}")]
pub struct CoreError {
    /// Their numbers, as the system counts them.
    pub cores: Vec<usize>,
    /// What the system says.
    pub reason: &'static str,
}

/// Keeps the calling thread to `cores`.
#[cfg(target_os = "linux")]
pub(super) fn keep_to(cores: &[usize]) -> Result<(), CoreError> {
    use nix::{
        sched::{CpuSet, sched_setaffinity},
        unistd::Pid,
    };
    let mut set = CpuSet::new();
    let kept = cores.iter().try_for_each(|&core| set.set(core));
    kept.and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| CoreError { cores: cores.to_vec(), reason: error.desc() })
}

/// Refuses: there is no such call.
#[cfg(not(target_os = "linux"))]
pub(super) fn keep_to(cores: &[usize]) -> Result<(), CoreError> {
    Err(CoreError { cores: cores.to_vec(), reason: "this system does not keep threads to processors" })
}
