//! One value of every variant of every enum that travels.
#![allow(dead_code, reason = "each test file uses its part")]

use zllm_wire::*;

pub(crate) fn job() -> JobId {
    JobId::new("j-01").unwrap()
}

pub(crate) fn session() -> SessionId {
    SessionId::new("s-01").unwrap()
}

pub(crate) fn tenant() -> Tenant {
    Tenant::new("t").unwrap()
}

pub(crate) fn batch() -> BatchId {
    BatchId::new("b").unwrap()
}

pub(crate) fn key() -> IdempotencyKey {
    IdempotencyKey::new("a key").unwrap()
}

pub(crate) fn key_settings() -> KeySettings {
    KeySettings {
        name: KeyName::new("k").unwrap(),
        tenant: tenant(),
        class: Class::Normal,
        admin: true,
        max_requests: Some(300),
    }
}

pub(crate) fn session_ref() -> SessionRef {
    SessionRef { tenant: Some(tenant()), id: session() }
}

pub(crate) fn tiers() -> TokenTiers {
    TokenTiers { device: 5, ram: 2, ssd: 1 }
}

pub(crate) fn params() -> GenerationParams {
    GenerationParams {
        sampling: SamplingParams {
            temperature: Some(0.5),
            dynatemp_range: Some(0.25),
            dynatemp_exponent: Some(1.5),
            top_k: Some(40),
            top_p: Some(0.75),
            min_p: Some(0.125),
            typical_p: Some(0.875),
            xtc_probability: Some(0.5),
            xtc_threshold: Some(0.125),
            mirostat: Some(2),
            mirostat_tau: Some(5.0),
            mirostat_eta: Some(0.125),
            repeat_penalty: Some(1.5),
            repeat_last_n: Some(64),
            frequency_penalty: Some(0.25),
            presence_penalty: Some(2.0),
            dry_multiplier: Some(0.75),
            dry_base: Some(1.75),
            dry_allowed_length: Some(2),
            dry_penalty_last_n: Some(u32::MAX),
            dry_sequence_breakers: Some(vec!["\n".into(), ":".into()]),
            logit_bias: vec![LogitBias { token: 70_000, bias: f32::NEG_INFINITY }],
            seed: Some(u64::MAX),
        },
        max_tokens: Some(300),
        min_tokens: Some(3),
        stop: vec!["\n\n".into(), "é".into()],
        stop_tokens: vec![2, 300],
        ignore_eos: true,
        n: Some(2),
        logprobs: Some(1),
    }
}

pub(crate) fn usage() -> Usage {
    Usage {
        prompt_tokens: 12,
        cached_tokens: 8,
        cached_by_tier: tiers(),
        generated_tokens: 300,
        queue_ms: 0.5,
        prefill_ms: 2.0,
        first_token_ms: 4.0,
        decode_ms: 1024.0,
    }
}

pub(crate) fn submit(prompt: Prompt) -> Submit {
    Submit {
        model: "m".into(),
        prompt,
        params: params(),
        session: Some(session()),
        tenant: Some(tenant()),
        detached: true,
        stream: false,
        label: Some("l".into()),
        class: Class::Batch,
        deadline_ms: Some(600_000),
        max_wait_ms: Some(30_000),
        key: Some(key()),
        batch: Some(batch()),
    }
}

pub(crate) fn prompts() -> Vec<Prompt> {
    vec![
        Prompt::Text { text: "hi".into(), parse_special: true },
        Prompt::Chat {
            messages_json: "[]".into(),
            tools_json: Some("[]".into()),
            template: Some(templates().remove(1)),
            continue_last: true,
        },
        Prompt::Tokens(TokenIds(vec![0, 1, 255, 256, u32::MAX])),
        Prompt::Continue { session: session(), text: "on".into(), parse_special: false },
    ]
}

pub(crate) fn templates() -> Vec<Template> {
    vec![Template::Named("t".into()), Template::Source("{{".into())]
}

pub(crate) fn ops() -> Vec<Op> {
    vec![
        Op::Models,
        Op::Load { model: "m".into() },
        Op::Unload { model: "m".into() },
        Op::Submit(Box::new(submit(prompts().remove(0)))),
        Op::Attach { job: job(), from: 1 << 40 },
        Op::Cancel { target: cancel_targets().remove(2) },
        Op::List,
        Op::Show(ShowTarget::Session(session_ref())),
        Op::Evict { target: EvictTarget::OlderThan { idle_ms: 7_200_000 }, tier: Some(Tier::Ram) },
        Op::Status,
        Op::Tokenize { model: "m".into(), text: "a\0b".into(), parse_special: true, add_bos: false },
        Op::Stop { drain: true },
        Op::Inspect(InspectTarget::File("/m.gguf".into())),
        Op::Residency,
        Op::Fork { from: session_ref(), to: session(), tokens: Some(1000) },
        Op::Pin { session: session_ref() },
        Op::Unpin { session: session_ref() },
        Op::Ttl { session: session_ref(), ttl_ms: Some(43_200_000) },
        Op::Save { session: None },
        Op::Check,
        Op::Why { job: job() },
        Op::Queue,
        Op::Hold { job: job() },
        Op::Release { job: job() },
        Op::SetClass { job: job(), class: Class::Interactive },
        Op::Drain,
        Op::Resume,
        Op::BatchJobs { tenant: Some(tenant()), batch: batch(), after: Some(job()) },
        Op::Keys,
        Op::AddKey(key_settings()),
        Op::RevokeKey { name: key_settings().name },
    ]
}

pub(crate) fn cancel_targets() -> Vec<CancelTarget> {
    let batch = CancelTarget::Batch { tenant: Some(tenant()), batch: batch() };
    vec![CancelTarget::Job(job()), CancelTarget::Session(session_ref()), batch]
}

pub(crate) fn classes() -> Vec<Class> {
    vec![Class::Interactive, Class::Normal, Class::Batch]
}

pub(crate) fn wait_reasons() -> Vec<WaitReason> {
    use WaitReason::*;
    let memory = Memory { blocks: 300, free: 7 };
    let model = Model { state: "loading".into() };
    vec![Turn, Places, memory, Reading, model, Held, Draining, Storing, Parked]
}

pub(crate) fn phases() -> Vec<Phase> {
    vec![Phase::Prefill { done: 7, total: 300 }, Phase::Decode]
}

pub(crate) fn moments() -> Vec<MomentKind> {
    use MomentKind::*;
    let restored = Restored { ram: 7, ssd: 300 };
    let started = Started { cached_tokens: 307 };
    vec![
        Queued,
        Stored,
        Held,
        Released,
        PrefixSearched,
        restored,
        started,
        PrefillDone,
        FirstToken,
        Parked,
        Resumed,
        Restarted,
        Ended,
    ]
}

pub(crate) fn timeline() -> Vec<Moment> {
    (0..).zip(moments()).map(|(place, what)| Moment { at_ms: f64::from(place) / 2.0, what }).collect()
}

pub(crate) fn waiting(why: WaitReason) -> WaitingJob {
    WaitingJob {
        job: job(),
        label: Some("l".into()),
        tenant: Some(tenant()),
        session: Some(session()),
        model: "m".into(),
        class: Class::Batch,
        level: 1,
        position: 2,
        waited_ms: 1000,
        prompt_tokens: 12,
        max_tokens: 600,
        generated_tokens: 30,
        why,
        starts_in_ms: Some(2000),
    }
}

pub(crate) fn queue() -> QueueReport {
    let load = |jobs| QueueLoad { jobs, tokens: 100 * jobs, bytes: jobs << 20 };
    let running = |phase| RunningJob {
        job: job(),
        label: None,
        tenant: None,
        model: "m".into(),
        class: Class::Normal,
        phase,
        generated_tokens: 7,
        max_tokens: 300,
        ticket_tokens: 320,
        ticket_bytes: 1 << 20,
        since_ms: 1000,
    };
    let class = |class| ClassLoad { class, queued: load(3), limit: load(512) };
    QueueReport {
        draining: true,
        waiting: wait_reasons().into_iter().map(waiting).collect(),
        running: phases().into_iter().map(running).collect(),
        classes: classes().into_iter().map(class).collect(),
        tenants: vec![TenantLoad {
            tenant: Some(tenant()),
            queued: load(9),
            limit: load(256),
            running_jobs: 2,
            served_tokens: 1 << 40,
        }],
        running_limit: 16,
    }
}

pub(crate) fn batch_job(label: String) -> BatchJob {
    BatchJob { job: job(), label: Some(label), state: JobState::Running }
}

pub(crate) fn model_states() -> Vec<ModelState> {
    let failed = ModelState::Failed { message: "no".into() };
    vec![ModelState::Available, ModelState::Loading, ModelState::Loaded, failed]
}

pub(crate) fn model(state: ModelState) -> ModelInfo {
    ModelInfo {
        name: "m".into(),
        state,
        architecture: "llama".into(),
        path: "/m.gguf".into(),
        device: Some("cpu".into()),
        weight_bytes: 98_362_432,
        context_tokens: Some(8192),
        has_template: Some(true),
    }
}

pub(crate) fn job_info(state: JobState) -> JobInfo {
    JobInfo {
        id: job(),
        label: None,
        model: "m".into(),
        tenant: Some(tenant()),
        session: Some(session()),
        state,
        class: Class::Batch,
        held: true,
        batch: Some(batch()),
        detached: false,
        queue_position: 3,
        prompt_tokens: 12,
        cached_tokens: 8,
        cached_by_tier: tiers(),
        generated_tokens: 300,
        bytes: TierBytes { device: 1 << 20, ram: 2, ssd: 3 },
        age_ms: 1000,
        idle_ms: 10,
    }
}

pub(crate) fn session_info(state: SessionState) -> SessionInfo {
    SessionInfo {
        id: session(),
        tenant: Some(tenant()),
        model: "m".into(),
        state,
        tokens: 312,
        bytes: TierBytes::default(),
        idle_ms: 9,
        pinned: true,
        ttl_ms: Some(43_200_000),
        saved: true,
        turns: 4,
        hit_tokens: 250,
    }
}

pub(crate) fn session_detail() -> SessionDetail {
    SessionDetail {
        info: session_info(SessionState::Active),
        blocks: TierBlocks { device: 3, ram: 2, ssd: 5 },
        shared_blocks: 2,
        shared_with: vec![SessionRef { tenant: None, id: session() }],
        unsaved_blocks: 1,
        generation: 4,
        saved_generation: Some(3),
        created_ms_ago: 1000,
        hits: 3,
        jobs: vec![job_info(JobState::Running)],
    }
}

pub(crate) fn block_states() -> Vec<BlockState> {
    use BlockState::*;
    vec![Free, Cached, Pinned, Leased]
}

pub(crate) fn residency() -> Residency {
    let run = |state| BlockRun { blocks: 300, state, sessions: vec![0, 1], age_ms: 1000 };
    let map = |tier| TierMap {
        tier,
        model: (tier != Tier::Ssd).then(|| "m".into()),
        block_bytes: 1 << 20,
        capacity_blocks: 1200,
        capacity_bytes: 1200 << 20,
        used_bytes: 900 << 20,
        runs: block_states().into_iter().map(run).collect(),
    };
    Residency {
        tiers: [Tier::Device, Tier::Ram, Tier::Ssd].map(map).to_vec(),
        sessions: vec![session_ref(), SessionRef { tenant: None, id: session() }],
        read_bytes_per_s: Some(1e9),
        compute_tokens_per_s: vec![ModelRate { model: "m".into(), tokens_per_s: 1024.0 }],
        unsaved_bytes: 1 << 20,
    }
}

pub(crate) fn outcomes() -> Vec<CacheOutcome> {
    let text = |text: &str| text.to_owned();
    vec![
        CacheOutcome::Whole,
        CacheOutcome::Diverged { at: 300, before: text("b"), kept: text("k"), asked: text("a") },
        CacheOutcome::Ended { kept_tokens: 300 },
        CacheOutcome::Nothing,
        CacheOutcome::Computed { ssd_tokens: 64, read_ms: 8, compute_ms: 4 },
        CacheOutcome::Unreadable { reason: text("no") },
        CacheOutcome::Waiting,
    ]
}

pub(crate) fn ssd_states() -> Vec<SsdState> {
    vec![SsdState::Off, SsdState::Ready, SsdState::Down { reason: "no".into() }]
}

pub(crate) fn kv_status() -> KvStatus {
    KvStatus {
        ssd: SsdState::Ready,
        path: Some("/kv".into()),
        file_bytes: 1 << 30,
        budget_bytes: 1 << 34,
        stored_blocks: 300,
        unsaved_bytes: 1 << 20,
        ram_budget_bytes: 1 << 31,
        ram_used_bytes: 1 << 29,
        read_bytes_per_s: Some(1e9),
        compute_tokens_per_s: None,
        evicted_blocks: TierBlocks { device: 1, ram: 2, ssd: 3 },
        lost_unsaved_blocks: 4,
    }
}

pub(crate) fn job_states() -> Vec<JobState> {
    use JobState::*;
    vec![Queued, Running, Done, Failed, Cancelled]
}

pub(crate) fn error_codes() -> Vec<ErrorCode> {
    use ErrorCode::*;
    vec![
        NotFound,
        Refused { retry_after_ms: 1500 },
        Invalid,
        Failed,
        Draining,
        TooLong { tokens: 9000, context: 8192 },
    ]
}

pub(crate) fn logprobs() -> Vec<TokenLogprob> {
    let top = vec![TopLogprob { token: 300, bytes: b"n".to_vec(), logprob: -0.5 }];
    let first = TokenLogprob { token: 7, bytes: b"n\xc3".to_vec(), logprob: -1.5, offset: 4, top };
    vec![first, TokenLogprob { token: 8, bytes: vec![0xa9], logprob: 0.0, offset: 6, top: vec![] }]
}

pub(crate) fn stop_causes() -> Vec<StopCause> {
    vec![
        StopCause::EndOfText { token: 2 },
        StopCause::Token { token: 300 },
        StopCause::Text { text: "é".into() },
    ]
}

pub(crate) fn ends() -> Vec<ChoiceEnd> {
    let stopped = |cause| ChoiceEnd { reason: FinishReason::Stop, stop: Some(cause) };
    let length = ChoiceEnd { reason: FinishReason::Length, stop: None };
    stop_causes().into_iter().map(stopped).chain([length]).collect()
}

pub(crate) fn events() -> Vec<Event> {
    vec![
        Event::Queued { position: 2 },
        Event::Started { cached_tokens: 8, cached_by_tier: tiers(), prompt_tokens: 12 },
        Event::Text { choice: 0, text: "né".into(), tokens: 2, logprobs: vec![] },
        Event::Finished { reason: FinishReason::Length, choices: ends(), usage: usage() },
        Event::Failed { message: "no".into() },
    ]
}

pub(crate) fn status() -> Status {
    Status {
        version: "0.1.0".into(),
        pid: 4711,
        uptime_ms: 60_000,
        draining: false,
        models: model_states().into_iter().map(model).collect(),
        devices: vec![DeviceInfo {
            name: "cpu".into(),
            description: "avx2".into(),
            total_bytes: 1 << 33,
            used_bytes: 1 << 28,
            busy: 0.5,
        }],
        blocks: [Tier::Device, Tier::Ram, Tier::Ssd]
            .map(|tier| BlockUsage {
                model: "m".into(),
                tier,
                block_bytes: 1 << 20,
                total: 100,
                used: 10,
                cached: 20,
            })
            .to_vec(),
        kv: kv_status(),
        queued_jobs: 1,
        queue_capacity: 64,
        held_jobs: 12,
        parked_jobs: 13,
        running_jobs: 2,
        jobs_durable: true,
        jobs_fault: Some("no".into()),
        sessions: 3,
        connections: 4,
        jobs_done: 5,
        jobs_failed: 6,
        jobs_cancelled: 7,
        jobs_refused: 8,
        prompt_tokens: 9,
        cached_tokens: 10,
        generated_tokens: 11,
        speed: Speed {
            prefill_tokens_per_s: 512.0,
            decode_tokens_per_s: 64.0,
            batch_rows: 3.5,
            first_token: Percentiles { p50_ms: 64.0, p90_ms: 128.0, p99_ms: 256.0, count: 300 },
            inter_token: Percentiles { p50_ms: 16.0, p90_ms: 32.0, p99_ms: 48.0, count: 7 },
        },
    }
}

pub(crate) fn job_detail() -> JobDetail {
    JobDetail {
        info: job_info(JobState::Done),
        params: params(),
        choices: vec![
            ChoiceDetail { text: "text".into(), end: ends().pop() },
            ChoiceDetail { text: String::new(), end: None },
        ],
        events: 9,
        finish: Some(FinishReason::Stop),
        usage: Some(usage()),
        error: Some("e".into()),
        attempts: 2,
        deadline_ms: Some(300_000),
        max_wait_ms: None,
        key: Some(key()),
        timeline: timeline(),
    }
}

pub(crate) fn answers() -> Vec<Answer> {
    let fault = Fault { code: ErrorCode::NotFound, message: "no".into() };
    vec![
        Answer::Done,
        Answer::Error(fault),
        Answer::Models(vec![model(ModelState::Loaded)]),
        Answer::Progress { stage: LoadStage::Weights, done_bytes: 1, total_bytes: 1 << 33 },
        Answer::Model(model(ModelState::Loaded)),
        Answer::Accepted { job: job(), known: true },
        Answer::Event { offset: 7, event: events().remove(2) },
        Answer::Listing {
            sessions: vec![session_info(SessionState::Idle)],
            jobs: job_states().into_iter().map(job_info).collect(),
        },
        Answer::Job(Box::new(job_detail())),
        Answer::Session(Box::new(session_detail())),
        Answer::Evicted { sessions: 1, blocks: 2, bytes: 3 },
        Answer::Status(Box::new(status())),
        Answer::Tokens(TokenIds(vec![1, 2, 3])),
        Answer::Inspection { json: "{}".into() },
        Answer::Residency(Box::new(residency())),
        Answer::Saved { sessions: 1, blocks: 2, bytes: 3 },
        Answer::Checked(Box::new(CheckReport {
            blocks: 300,
            bytes: 1 << 30,
            sessions: 3,
            complete_sessions: 2,
            damaged: vec!["d".into()],
            dangling: vec!["g".into()],
            took_ms: 1000,
        })),
        Answer::Why(Box::new(CacheStory {
            job: job(),
            prompt_tokens: 12,
            cached: tiers(),
            outcome: outcomes().remove(1),
        })),
        Answer::Cancelled { jobs: 300 },
        Answer::Queue(Box::new(queue())),
        Answer::BatchJobs(BatchPage { jobs: vec![batch_job("l".into())], more: true }),
        Answer::Keys(vec![KeyInfo { settings: key_settings(), created_unix_s: 1 << 31 }]),
        Answer::NewKey { key: "zllm-0".into() },
    ]
}

pub(crate) fn client_frames() -> Vec<ClientFrame> {
    let hello = ClientFrame::Hello { version: VERSION, client: "c".into() };
    vec![hello, ClientFrame::Request(Request { id: 1, body: Op::Models })]
}

pub(crate) fn server_frames() -> Vec<ServerFrame> {
    vec![
        ServerFrame::Welcome { version: VERSION, server: "s".into(), pid: 4711 },
        ServerFrame::Refused { version: VERSION, message: "no".into() },
        ServerFrame::Reply(Reply { id: 1, body: Answer::Done }),
    ]
}
