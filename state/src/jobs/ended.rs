//! Which ended jobs are kept, in memory: what a change lets expire is known before it is written.

use std::collections::BTreeMap;

use super::job::{Head, Retention};

/// All ended jobs that are stored.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Bytes of each, by when it ended and its number.
    jobs: BTreeMap<(u64, u64), u64>,
    /// Their sum.
    bytes: u64,
}

impl Ended {
    /// Adds a job, if it has ended.
    pub(super) fn insert(&mut self, head: &Head) {
        let Some(ended_ms) = head.record.ended_ms else { return };
        let before = self.jobs.insert((ended_ms, head.record.number), head.kept_bytes());
        assert_eq!(before, None, "a job ends once");
        self.bytes = self.bytes.saturating_add(head.kept_bytes());
    }

    pub(super) fn remove(&mut self, expired: &[(u64, u64)]) {
        for job in expired {
            let bytes = self.jobs.remove(job).expect("what expires was kept");
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }

    /// Who goes, the first that ended first, when these have ended as well. Those themselves stay until the next time, so
    /// that whoever waits for them can still ask.
    pub(super) fn expired<'a>(
        &self,
        retention: &Retention,
        now_ms: u64,
        new: impl Iterator<Item = &'a Head>,
    ) -> Vec<(u64, u64)> {
        let (mut jobs, mut bytes) = (self.jobs.len() as u64, self.bytes);
        for head in new.filter(|head| head.record.state.is_terminal()) {
            (jobs, bytes) = (jobs + 1, bytes.saturating_add(head.kept_bytes()));
        }
        let mut expired = Vec::new();
        for (&(ended_ms, number), job_bytes) in &self.jobs {
            let is_old = now_ms.saturating_sub(ended_ms) > retention.max_age_ms;
            if !is_old && jobs <= retention.max_jobs && bytes <= retention.max_bytes {
                break;
            }
            expired.push((ended_ms, number));
            (jobs, bytes) = (jobs - 1, bytes.saturating_sub(*job_bytes));
        }
        expired
    }
}
