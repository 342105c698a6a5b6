//! The store on disk: what it keeps, and its budget.

mod budget;
mod crash;
mod damage;
mod flaky;
mod format;
mod keeps;
mod samples;
