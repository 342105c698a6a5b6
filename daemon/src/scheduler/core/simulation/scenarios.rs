//! The histories that are run.

use super::super::Time;
use super::checks::{Fault, jain};
use super::clients::{ClientPlan, Script};
use super::happening::Totals;
use super::mutants::Mutant;
use super::rng::Rng;
use super::scenario::{ModelPlan, Scenario, Trouble, hours, limits_of, minutes};
use super::store::Blocks;
use super::world::World;
use std::time::Duration;
use zllm_wire::Class;

const NEVER: Time = Duration::MAX;

fn number(name: &str) -> Option<f64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Says which seed it was, also when the core itself panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulation failed: run it again with ZLLM_SEED={}", self.0);
        }
    }
}

/// People and agents, batches, a flood now and then; everything goes wrong sometimes. Seeds differ in devices and sizes.
fn mixed(seed: u64, hours: f64) -> Scenario {
    let mut rng = Rng::new(seed ^ 0xd1f);
    let devices = [[vec![0], vec![0]], [vec![0], vec![1]], [vec![0, 1], vec![1]]][rng.below(3)].clone();
    let [first, second] = devices;
    let mut scenario = Scenario::quiet();
    scenario.models = vec![
        ModelPlan { blocks: Blocks { device: 120 + rng.below(60) as u32, ram: 80 }, devices: first },
        ModelPlan { blocks: Blocks { device: 50 + rng.below(40) as u32, ram: 20 }, devices: second },
    ];
    scenario.limits.running_jobs = 3 + rng.below(6);
    scenario.limits.prefill_chunk_tokens = [16, 64, 128, 256][rng.below(4)];
    scenario.clients = mixed_clients(&mut rng);
    // A long run has quieter hours: what goes wrong an hour would cover all else.
    let rarely = if hours > 4.0 { 4 } else { 1 };
    scenario.trouble = Trouble {
        not_now: 20,
        slow_leases: 50,
        failed_writes: 10,
        device_faults: 5,
        fates: 150,
        deadlines: 40,
        drains: Some(minutes(25) * rarely),
        restarts: Some(minutes(30) * rarely),
        kills: Some(minutes(12) * rarely),
    };
    scenario.longest_job = minutes(6);
    scenario.check_every = if hours > 4.0 { 16 } else { 1 };
    scenario
}

fn mixed_clients(rng: &mut Rng) -> Vec<ClientPlan> {
    let talks = |class, think, beginning| Script::Talks {
        class,
        beginning,
        question: (10, 120),
        answer: (5, 120),
        think,
        longest: 1500,
    };
    let batch = |durable, jobs, every| Script::Batch {
        class: Class::Batch,
        durable,
        jobs,
        every,
        beginnings: 4,
        beginning: 260,
        own: (10, 300),
        answer: (5, 150),
    };
    let flood =
        Script::Flood { class: Class::Normal, jobs: 400, every: minutes(20), own: (5, 60), answer: (1, 20) };
    let mut scripts: Vec<(Script, &str)> = Vec::new();
    for at in 0..3 + rng.below(4) {
        scripts.push((talks(Class::Interactive, seconds(15), 20), ["", "one", "two"][at % 3]));
    }
    for _ in 0..2 {
        scripts.push((talks(Class::Normal, seconds(2), 500), "agents"));
    }
    scripts.push((batch(true, 120, minutes(15)), "one"));
    scripts.push((batch(true, 40, minutes(5)), "night"));
    scripts.push((batch(false, 10, minutes(4)), "two"));
    scripts.push((flood, "flood"));
    let texts = |class, jobs, own| Script::Flood { class, jobs, every: minutes(2), own, answer: (0, 0) };
    scripts.push((texts(Class::Interactive, 2, (5, 200)), "two"));
    scripts.push((texts(Class::Batch, 20, (200, 700)), "one"));
    let plan = |(at, (script, tenant)): (usize, (Script, &str))| {
        let tenant = tenant.to_owned();
        ClientPlan { script, tenant, model: at % 2, from: Time::ZERO, until: NEVER }
    };
    scripts.into_iter().enumerate().map(plan).collect()
}

/// One history to its end.
fn run(scenario: Scenario, seed: u64, length: Time) -> Result<World, Fault> {
    let mut world = World::new(scenario, seed);
    world.run_until(length)?;
    world.finish()?;
    Ok(world)
}

fn passes(scenario: Scenario, seed: u64, length: Time) -> World {
    let _seed = Seed(seed);
    let outcome = run(scenario, seed, length);
    outcome.unwrap_or_else(|Fault { checker, message }| panic!("seed {seed}: {checker}: {message}"))
}

#[test]
fn random_days_end_well() {
    let length = number("ZLLM_SIM_HOURS").unwrap_or(0.4);
    let seeds: Vec<u64> = match number("ZLLM_SEED") {
        Some(seed) => vec![seed as u64],
        None => (1..=number("ZLLM_SIM_SEEDS").unwrap_or(5.0) as u64).collect(),
    };
    let mut all = Totals::default();
    for seed in seeds {
        let world = passes(mixed(seed, length), seed, hours(length));
        let (off, of) = (world.promises.median_error(), world.promises.count());
        println!(
            "seed {seed}: {:?}; promises off by 2^{off:.1} of {of}; pace {:.2}",
            world.totals,
            world.pace.p99()
        );
        all.add(&world.totals);
    }
    let kinds = [
        all.finished,
        all.cancelled,
        all.failed,
        all.refused,
        all.unstored,
        all.lost,
        all.restored,
        all.parked,
        all.several_answers,
        all.pooled,
        all.partial_leases,
        all.prefetches,
    ];
    assert!(kinds.iter().all(|count| *count > 0), "the days were too quiet: {all:?}");
}

/// Room for what several tenants have waiting.
fn roomy() -> Scenario {
    let mut scenario = Scenario::quiet();
    let (all, tenant) = (limits_of(1000), limits_of(25));
    (scenario.limits.queue, scenario.limits.classes, scenario.limits.tenant) = (all, [all; 3], tenant);
    scenario
}

/// A tenant that always has jobs of some size waiting.
fn saturating(
    tenant: &str,
    own: (usize, usize),
    answer: (usize, usize),
    from: Time,
    until: Time,
) -> ClientPlan {
    let script = Script::Batch {
        class: Class::Batch,
        durable: false,
        jobs: 20,
        every: seconds(1),
        beginnings: 1,
        beginning: 5,
        own,
        answer,
    };
    ClientPlan { script, tenant: tenant.to_owned(), model: 0, from, until }
}

fn people(count: usize, think: Duration, answer: (usize, usize), from: Time) -> Vec<ClientPlan> {
    let plan = |at: usize| {
        let class = Class::Interactive;
        let (beginning, question, longest) = (20, (10, 100), 1000);
        let script = Script::Talks { class, beginning, question, answer, think, longest };
        ClientPlan { script, tenant: format!("person {at}"), model: 0, from, until: NEVER }
    };
    (0..count).map(plan).collect()
}

#[test]
fn equal_tenants_get_equal_shares_whatever_the_size_of_their_jobs() {
    let tenants = ["few large", "middling", "many small"];
    let clients = vec![
        saturating(tenants[0], (800, 1200), (100, 200), Time::ZERO, hours(1.0)),
        saturating(tenants[1], (100, 400), (50, 100), Time::ZERO, hours(1.0)),
        saturating(tenants[2], (5, 40), (5, 30), Time::ZERO, hours(1.0)),
    ];
    let world = passes(Scenario { clients, ..roomy() }, 7, hours(1.0));
    for window in world.shares.between(minutes(5), hours(1.0), &tenants) {
        let index = jain(&window);
        assert!(index > 0.95, "Jain's index is {index:.3}: {window:?}");
    }
}

#[test]
fn a_tenant_that_comes_back_has_neither_a_claim_nor_a_debt() {
    let tenants = ["night", "one", "other", "late"];
    let (sizes, end) = (((100, 400), (50, 100)), minutes(80));
    let clients = vec![
        saturating(tenants[0], sizes.0, sizes.1, Time::ZERO, minutes(20)),
        saturating(tenants[1], sizes.0, sizes.1, minutes(22), end),
        saturating(tenants[2], sizes.0, sizes.1, minutes(23), end),
        // What the night used nobody else wanted; it is owed to nobody.
        saturating(tenants[0], sizes.0, sizes.1, minutes(24), end),
        saturating(tenants[3], sizes.0, sizes.1, minutes(50), end),
    ];
    let world = passes(Scenario { clients, ..roomy() }, 8, end);
    for window in world.shares.between(minutes(30), minutes(50), &tenants[..3]) {
        let index = jain(&window);
        assert!(index > 0.95, "after the night Jain's index is {index:.3}: {window:?}");
    }
    for window in world.shares.between(minutes(60), end, &tenants) {
        let index = jain(&window);
        assert!(index > 0.95, "with one more Jain's index is {index:.3}: {window:?}");
    }
}

/// Batch work that fills all places, and people.
fn people_beside_a_batch(people: Vec<ClientPlan>) -> Scenario {
    let mut clients = people;
    clients.push(saturating("batch", (50, 600), (100, 200), Time::ZERO, hours(1.0)));
    Scenario { clients, ..Scenario::quiet() }
}

#[test]
fn people_wait_for_a_step_and_a_lease_while_batch_work_fills_all_places() {
    let scenario = people_beside_a_batch(people(3, seconds(15), (20, 100), seconds(20)));
    let world = passes(scenario, 9, hours(0.6));
    let waits = &world.waits[&(Class::Interactive as u8)];
    let longest = waits.iter().max().expect("people asked");
    assert!(waits.len() > 100 && world.totals.parked > 50, "{} questions, {:?}", waits.len(), world.totals);
    assert!(*longest < Duration::from_millis(700), "one waited for {longest:?}");
}

/// More people than places, none of whom thinks for long.
fn crowd() -> Scenario {
    people_beside_a_batch(people(14, Duration::from_millis(200), (30, 100), Time::ZERO))
}

#[test]
fn batch_work_gets_its_turns_beside_a_crowd() {
    let world = passes(crowd(), 10, hours(1.0));
    let starts = world.waits[&(Class::Batch as u8)].len();
    assert!((20..400).contains(&starts), "{starts} batch jobs started in an hour beside a crowd");
}

#[test]
fn who_uses_much_of_one_model_does_not_starve_on_another() {
    let mut clients = people(40, Duration::from_millis(200), (30, 100), Time::ZERO);
    // Of one class on two models: the second runs all the time, the first is crowded.
    let other = saturating("batch", (50, 200), (5, 10), Time::ZERO, hours(1.0));
    clients.extend([ClientPlan { model: 1, ..other.clone() }, other]);
    let mut scenario = Scenario { clients, ..Scenario::quiet() };
    scenario.models.push(ModelPlan { devices: vec![1], ..scenario.models[0].clone() });
    // Memory is what the crowd fills, places are left.
    scenario.models[0].blocks = Blocks { device: 40, ram: 40 };
    scenario.limits.running_jobs = 24;
    passes(scenario, 14, hours(1.0));
}

/// Long answers, and long prompts all the time.
fn long_prompts() -> Scenario {
    let mut clients = people(4, seconds(1), (150, 200), Time::ZERO);
    for client in &mut clients {
        client.tenant = "readers".to_owned();
    }
    let script = Script::Batch {
        class: Class::Interactive,
        durable: false,
        jobs: 1,
        every: seconds(10),
        beginnings: 1,
        beginning: 1,
        own: (1500, 2000),
        answer: (5, 10),
    };
    clients.push(ClientPlan {
        script,
        tenant: "writer".to_owned(),
        model: 0,
        from: Time::ZERO,
        until: NEVER,
    });
    Scenario { clients, ..Scenario::quiet() }
}

#[test]
fn decodes_keep_their_pace_beside_long_prompts() {
    let world = passes(long_prompts(), 11, hours(0.5));
    let (p99, count) = (world.pace.p99(), world.pace.count());
    assert!(
        count > 500 && p99 > 1.2,
        "{count} mixed steps, p99 {p99:.2}: prompts should use what the pace leaves"
    );
}

#[test]
fn jobs_with_a_common_prefix_run_near_each_other() {
    let found = |jobs, every| {
        let script = Script::Batch {
            class: Class::Batch,
            durable: true,
            jobs,
            every,
            beginnings: 6,
            beginning: 640,
            own: (10, 40),
            answer: (5, 10),
        };
        let client =
            ClientPlan { script, tenant: String::new(), model: 0, from: Time::ZERO, until: minutes(30) };
        let mut scenario = Scenario { clients: vec![client], ..Scenario::quiet() };
        // Room for the prefixes of two jobs that run and of two more.
        scenario.models[0].blocks = Blocks { device: 26, ram: 8 };
        scenario.limits.running_jobs = 2;
        let totals = passes(scenario, 12, minutes(30)).totals;
        totals.found as f64 / totals.asked_for as f64
    };
    // One after the other there is nothing to choose from: the order of arrival.
    let (near, strict) = (found(100, minutes(10)), found(1, seconds(4)));
    assert!(near > strict + 0.2, "{near:.2} of the prompts found, {strict:.2} in the order of arrival");
}

/// Two tenants that flood beside batch work and people.
fn floods() -> Scenario {
    let flood =
        |own, answer| Script::Flood { class: Class::Normal, jobs: 300, every: minutes(3), own, answer };
    let plan = |(script, tenant): (Script, &str)| {
        let tenant = tenant.to_owned();
        ClientPlan { script, tenant, model: 0, from: Time::ZERO, until: NEVER }
    };
    let floods = [(flood((20, 100), (10, 60)), "one"), (flood((200, 900), (20, 120)), "two")];
    let mut clients: Vec<ClientPlan> = floods.map(plan).into();
    clients.push(saturating("batch", (50, 400), (50, 100), Time::ZERO, NEVER));
    clients.extend(people(2, seconds(5), (20, 80), Time::ZERO));
    Scenario { clients, ..Scenario::quiet() }
}

/// Powers of two by which the median of the promises to refused clients may be off.
const PROMISES_OFF: f64 = 1.5;

#[test]
fn a_flood_is_told_when_there_is_room_again() {
    let world = passes(floods(), 13, hours(0.6));
    let (error, count) = (world.promises.median_error(), world.promises.count());
    assert!(count > 100 && error < PROMISES_OFF, "of {count} promises the median is off by 2^{error:.2}");
}

// ---- canaries ----

/// The checker that complains first.
fn caught(scenario: Scenario, seed: u64, length: Time) -> &'static str {
    match run(scenario, seed, length) {
        Ok(_) => "none",
        Err(fault) => fault.checker,
    }
}

#[test]
fn a_core_that_starves_is_caught() {
    let mut scenario = crowd();
    scenario.limits.aging = None;
    assert_eq!(caught(scenario, 10, hours(1.0)), "starvation");
}

#[test]
fn a_core_without_a_pace_is_caught() {
    let mut scenario = long_prompts();
    scenario.limits.pace = None;
    assert_eq!(caught(scenario, 11, hours(0.5)), "pace");
}

#[test]
fn each_mutant_is_caught_by_its_checker() {
    let mutants = [
        (Mutant::ForgetsToAsk, "idle"),
        (Mutant::RepeatsText, "text"),
        (Mutant::SwapsText, "text"),
        (Mutant::LosesATokenOnResume, "resume"),
        (Mutant::EndsTwice, "endings"),
        (Mutant::WidensBounds, "bounds"),
    ];
    // What runs for ever is missed by whoever counts places, or looks at the queue.
    let scenario = Scenario { mutant: Some(Mutant::KeepsLeases), ..mixed(1, 0.5) };
    assert!(["places", "view"].contains(&caught(scenario, 1, hours(0.5))));
    let scenario = Scenario { mutant: Some(Mutant::InvertsClasses), ..crowd() };
    assert_eq!(caught(scenario, 1, hours(0.5)), "order");
    for (mutant, checker) in mutants {
        let scenario = Scenario { mutant: Some(mutant), ..mixed(1, 0.5) };
        assert_eq!(caught(scenario, 1, hours(0.5)), checker, "{mutant:?}");
    }
}

#[test]
fn a_core_that_takes_all_tenants_for_one_is_caught() {
    let tenants = ["few large", "many small"];
    let clients = vec![
        saturating(tenants[0], (800, 1200), (100, 200), Time::ZERO, hours(1.0)),
        saturating(tenants[1], (5, 40), (5, 30), Time::ZERO, hours(1.0)),
    ];
    let mut scenario = Scenario { clients, mutant: Some(Mutant::IgnoresTenants), ..roomy() };
    // The bound of all together is the first, so the checker of bounds has nothing to say.
    (scenario.limits.queue, scenario.limits.tenant) = (limits_of(80), limits_of(80));
    let mut world = World::new(scenario, 7);
    world.run_until(minutes(35)).unwrap_or_else(|fault| panic!("{fault:?}"));
    let unfair = |window: &Vec<u64>| jain(window) < 0.95;
    assert!(world.shares.between(minutes(5), minutes(35), &tenants).iter().any(unfair));
}

#[test]
fn a_core_that_promises_too_much_is_caught() {
    let scenario = Scenario { mutant: Some(Mutant::PromisesTooMuch), ..floods() };
    let world = passes(scenario, 13, hours(0.2));
    assert!(world.promises.median_error() > PROMISES_OFF);
}
