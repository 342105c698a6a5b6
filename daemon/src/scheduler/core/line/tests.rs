//! The order of the line, one rule at a time.

use super::*;
use crate::scheduler::core::NewJob;
use std::time::Duration;

fn limits() -> CoreLimits {
    let amount = Amount { jobs: 99, tokens: 9999, bytes: 9999 };
    CoreLimits {
        queue: amount,
        classes: [amount; 3],
        tenant: amount,
        running_jobs: 1,
        prefill_chunk_tokens: 8,
        pace: None,
        aging: Some(Duration::from_secs(60)),
    }
}

fn new(id: u64, tenant: &str, class: Class, prompt: Vec<u32>) -> NewJob {
    NewJob {
        id: JobNumber(id),
        model: "m".into(),
        tenant: tenant.into(),
        class,
        prompt,
        max_tokens: 10,
        choices: 1,
        pooling: None,
        bytes: 1,
        arrived_at: Duration::ZERO,
        start_by: None,
        deadline: None,
        owner: Some(super::super::ConnectionId(1)),
    }
}

/// A line, and the jobs in it.
#[derive(Default)]
struct Waiting {
    line: Line,
    jobs: HashMap<JobNumber, Job>,
}

impl Waiting {
    fn join(&mut self, new: NewJob) {
        let (id, job) = (new.id, Job::new(new));
        self.line.join(id, &job);
        self.jobs.insert(id, job);
    }

    /// Who is next, who then starts, is served and ends.
    fn pass(&mut self, now: Time) -> Option<(u64, u8)> {
        let may = |job: &Job| job.may_start_next();
        let Next { job: id, level } = self.line.next(&self.jobs, std::iter::empty(), &limits(), now, may)?;
        for passed in self.line.passed_over(&self.jobs, id, &limits(), now, may) {
            self.jobs.get_mut(&passed).expect("it waits").bypassed += 1;
        }
        let job = self.jobs.remove(&id).expect("it waits");
        self.line.start(&job, now);
        self.line.served(&job, job.prompt.len());
        // It was counted out by its start, and leaves as one that has not started.
        self.line.waiting.remove(&id);
        self.line.leave(id, &job);
        Some((id.0, level))
    }

    fn order(&mut self, now: Time) -> Vec<u64> {
        std::iter::from_fn(|| self.pass(now)).map(|(id, _)| id).collect()
    }
}

#[test]
fn classes_go_before_arrival_and_arrival_before_nothing() {
    let mut waiting = Waiting::default();
    let classes = [Class::Batch, Class::Normal, Class::Interactive, Class::Batch, Class::Interactive];
    for (id, class) in (1..).zip(classes) {
        waiting.join(new(id, "", class, vec![id as u32; 20]));
    }
    assert_eq!(waiting.order(Duration::ZERO), [3, 5, 2, 1, 4]);
    assert_eq!(waiting.line.queued(), Amount::default());
}

#[test]
fn a_class_rises_with_each_aging_and_falls_with_its_start() {
    let mut waiting = Waiting::default();
    waiting.join(new(1, "", Class::Batch, vec![1; 20]));
    waiting.join(new(2, "", Class::Batch, vec![2; 20]));
    let late = Duration::from_secs(130);
    for id in 3..5 {
        waiting.join(NewJob { arrived_at: late, ..new(id, "", Class::Interactive, vec![id as u32; 20]) });
    }
    assert_eq!(waiting.pass(late), Some((1, 0)), "two levels in two minutes, and it came first");
    assert_eq!(waiting.pass(late), Some((3, 0)));
    let later = late + Duration::from_secs(60);
    assert_eq!(waiting.pass(later), Some((4, 0)));
    assert_eq!(waiting.pass(later), Some((2, 1)), "one level since its class had a start");
}

#[test]
fn tenants_take_turns_by_tokens_and_not_by_jobs() {
    let mut waiting = Waiting::default();
    for id in 0..3 {
        waiting.join(new(10 + id, "large", Class::Normal, vec![id as u32; 300]));
    }
    for id in 0..8 {
        waiting.join(new(20 + id, "small", Class::Normal, vec![100 + id as u32; 100]));
    }
    assert_eq!(waiting.order(Duration::ZERO), [10, 20, 21, 22, 11, 23, 24, 25, 12, 26, 27]);
}

#[test]
fn who_idled_has_no_claim_and_who_was_alone_no_debt() {
    let mut waiting = Waiting::default();
    for id in 1..5 {
        waiting.join(new(id, "night", Class::Normal, vec![id as u32; 500]));
    }
    assert_eq!(waiting.order(Duration::ZERO), [1, 2, 3, 4]);
    // All are gone; another comes, then the first again.
    waiting.join(new(5, "day", Class::Normal, vec![5; 100]));
    waiting.join(new(6, "day", Class::Normal, vec![6; 100]));
    waiting.join(new(7, "night", Class::Normal, vec![7; 100]));
    assert_eq!(waiting.order(Duration::ZERO), [5, 7, 6]);
}

#[test]
fn a_job_with_less_work_goes_first_a_bounded_number_of_times() {
    let mut waiting = Waiting::default();
    waiting.join(new(1, "", Class::Normal, vec![1; 400]));
    for id in 2..20 {
        waiting.join(new(id, "", Class::Normal, vec![id as u32; 50]));
    }
    let order = waiting.order(Duration::ZERO);
    let before = order.iter().position(|id| *id == 1).expect("it starts");
    assert_eq!(before, MAX_BYPASSES as usize, "{order:?}");
    assert!(order[..before].is_sorted() && order[before + 1..].is_sorted(), "else in order: {order:?}");
}

#[test]
fn a_job_that_shares_the_last_ones_beginning_goes_first() {
    let mut waiting = Waiting::default();
    let prompt = |kind: u32, end: u32| [vec![kind; 200], vec![end; 20]].concat();
    for (id, kind) in (1..).zip([1, 2, 1, 2, 1]) {
        waiting.join(new(id, "", Class::Batch, prompt(kind, id as u32)));
    }
    assert_eq!(waiting.order(Duration::ZERO), [1, 3, 5, 2, 4]);
}
