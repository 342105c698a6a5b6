//! The three places where KV lies.

/// A place for KV blocks. On a device that computes in host memory the first two are one arena: a block moves between
/// them in the books alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The device's memory, where it can be used.
    Device,
    /// Host memory.
    Ram,
    /// The database on disk.
    Ssd,
}

/// Something counted by tier: tokens, blocks or bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByTier {
    /// On the device.
    pub device: u64,
    /// In host memory.
    pub ram: u64,
    /// On disk.
    pub ssd: u64,
}

impl ByTier {
    /// All together.
    pub fn total(&self) -> u64 {
        self.device + self.ram + self.ssd
    }

    /// The count of one tier.
    pub fn of(&mut self, tier: Tier) -> &mut u64 {
        match tier {
            Tier::Device => &mut self.device,
            Tier::Ram => &mut self.ram,
            Tier::Ssd => &mut self.ssd,
        }
    }
}
