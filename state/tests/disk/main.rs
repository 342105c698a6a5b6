//! The store on disk: what it keeps, and its budget.

mod budget;
mod keeps;
mod samples;
