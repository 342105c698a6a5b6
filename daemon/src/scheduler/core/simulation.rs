//! Days of the scheduler in seconds: the core with the daemon's own journal, the real index of blocks, a device that computes
//! hashes instead of text, a disk that is late or fails, clients that talk, submit batches, flood, leave, cancel, and an
//! operator who stops the daemon or kills it.
//!
//! One seed is one history. `ZLLM_SEED` runs one, `ZLLM_SIM_SEEDS` runs so many, `ZLLM_SIM_HOURS` makes them that long.
//! Each failure tells its seed and which checker complains.
//!
//! What must hold (`checks/` has a file for each; `job.rs` judges texts and logs): each job ends once and has no event after
//! that; its text is what it is alone on the machine, over parking, stops and kills; leases come back; bounds hold; nobody
//! starves, idles without need or is overtaken from below; decodes keep their pace; tenants get equal shares. Cores with a
//! fault (`mutants.rs`) must be caught by the checker of its kind.

mod checks;
mod clients;
mod device;
mod disk;
mod happening;
mod job;
mod mutants;
mod rng;
mod scenario;
mod scenarios;
mod store;
mod text;
mod upkeep;
mod world;
