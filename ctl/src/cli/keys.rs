//! Arguments that are about API keys.

use super::ClassArg;
use clap::{Args, Subcommand};
use zllm_wire::{KeyName, KeySettings, Tenant};

/// `keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Make a key and print it: this is the only time that it is shown
    Add(AddKeyArgs),
    /// List the keys by their names
    List,
    /// Let a key be none any more; without any, programs on this machine need none
    Revoke {
        /// The key's name
        name: KeyName,
    },
}

/// `keys add`.
#[derive(Debug, Args)]
pub(crate) struct AddKeyArgs {
    /// What to call it
    name: KeyName,
    /// Whose requests they are: tenants share no KV and see nothing of each other [default: the key's name]
    #[arg(long, value_name = "NAME")]
    tenant: Option<Tenant>,
    /// The most urgent class that its requests may have
    #[arg(long, value_enum, default_value_t = ClassArg::Interactive)]
    class: ClassArg,
    /// It may see and steer what is of all tenants
    #[arg(long)]
    admin: bool,
    /// Requests that it may have under way at one time [default: any number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_requests: Option<u32>,
}

impl AddKeyArgs {
    /// What the daemon is told.
    pub(crate) fn settings(self) -> KeySettings {
        let Self { name, tenant, class, admin, max_requests } = self;
        let own =
            || Tenant::new(name.as_str()).expect("names of keys and of tenants have the same characters");
        KeySettings { tenant: tenant.unwrap_or_else(own), name, class: class.into(), admin, max_requests }
    }
}
