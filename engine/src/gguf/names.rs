//! Names in the file's order, found by binary search. Built once; a name that is there twice is an error.

/// A name that is there twice.
pub(super) struct Twice {
    pub(super) name: String,
    /// Where the file has the second one.
    pub(super) offset: usize,
    /// Positions of both in the file's order.
    pub(super) first: usize,
    pub(super) second: usize,
}

/// Names with the offsets where the file has them.
#[derive(Debug)]
pub(super) struct NameIndex {
    names: Vec<(Box<str>, usize)>,
    /// Positions in `names`, in the order of the names.
    sorted: Vec<u32>,
}

impl NameIndex {
    pub(super) fn with_capacity(count: usize) -> Self {
        Self { names: Vec::with_capacity(count), sorted: Vec::new() }
    }

    /// Adds the next name, which the file has at `offset`.
    pub(super) fn push(&mut self, name: &str, offset: usize) {
        self.names.push((name.into(), offset));
    }

    /// Makes the names searchable; gives the first name that is there twice.
    pub(super) fn finish(&mut self) -> Result<(), Twice> {
        let names = &self.names;
        let count = u32::try_from(names.len()).expect("limits.rs allows fewer");
        self.sorted = (0..count).collect();
        // Equal names stay in the file's order.
        self.sorted.sort_by(|&a, &b| names[a as usize].0.cmp(&names[b as usize].0));
        let twice = self.sorted.windows(2).filter(|w| names[w[0] as usize].0 == names[w[1] as usize].0);
        match twice.map(|w| (w[1] as usize, w[0] as usize)).min() {
            Some((second, first)) => {
                let (name, offset) = (names[second].0.to_string(), names[second].1);
                Err(Twice { name, offset, first, second })
            }
            None => Ok(()),
        }
    }

    /// The position of `name` in the file's order.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let found = self.sorted.binary_search_by(|&i| (*self.names[i as usize].0).cmp(name)).ok()?;
        Some(self.sorted[found] as usize)
    }

    /// The positions in the order of the names.
    pub(super) fn sorted(&self) -> impl Iterator<Item = usize> {
        self.sorted.iter().map(|&i| i as usize)
    }

    /// The name at `position` of the file's order.
    pub(super) fn name(&self, position: usize) -> &str {
        &self.names[position].0
    }
}
