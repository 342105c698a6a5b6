//! How many physical cores this process may use. Two hyperthreads share the vector units that the kernels keep full,
//! so more threads than cores make a model slower.

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::path::Path;

/// Physical cores among the processors that this process may run on; at least 1, and no more than the scheduler (a
/// container's quota included) will run at once.
pub(super) fn physical_cores() -> usize {
    let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = allowed_cores(Path::new("/sys/devices/system/cpu")).unwrap_or(parallelism);
    cores.clamp(1, parallelism)
}

/// The processors that this process may run on, by number; none where the kernel does not say.
pub(super) fn allowed_processors() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect()
}

/// `None` where the kernel does not say.
fn allowed_cores(cpus: &Path) -> Option<usize> {
    let mut cores = BTreeSet::new();
    for cpu in allowed_processors() {
        // Hyperthreads of one core have the same list of siblings.
        let siblings = cpus.join(format!("cpu{cpu}/topology/thread_siblings_list"));
        cores.insert(std::fs::read_to_string(siblings).ok()?);
    }
    Some(cores.len()).filter(|&count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_core_and_not_more_than_processors() {
        let cores = physical_cores();
        assert!(cores >= 1 && cores <= std::thread::available_parallelism().map_or(1, usize::from));
    }

    #[test]
    fn siblings_count_once() {
        let folder = std::env::temp_dir().join(format!("zllmd-cores-{}", std::process::id()));
        for cpu in 0..CpuSet::count() {
            let topology = folder.join(format!("cpu{cpu}/topology"));
            std::fs::create_dir_all(&topology).expect("scratch folder");
            std::fs::write(topology.join("thread_siblings_list"), "0-4095\n").expect("scratch file");
        }
        let cores = allowed_cores(&folder);
        std::fs::remove_dir_all(&folder).expect("scratch folder");
        assert_eq!(cores, Some(1));
    }
}
