//! The children of a node: a search tree by tokens, so that the longest common prefix is found among any number of
//! siblings in logarithmic time.
//!
//! In lexicographic order (a prefix before what continues it) the longest common prefix with some text is shared by one
//! of its two neighbours. So a lookup finds the last sibling before and the first after, among those that have the
//! wanted flags; whole branches without them are passed over by the flags that each node sums up in `below`.
//!
//! The tree is a treap: the heap order is by the leading bytes of the block keys, which are uniform (they are hashes),
//! so that the depth stays logarithmic whatever is inserted in which order.

use super::nodes::{NONE, Node, NodeId, Nodes};
use crate::key::BLOCK_TOKENS;
use std::cmp::Ordering;

/// Which siblings a search may find.
pub(super) struct Among<'a> {
    /// Any of these seen flags.
    pub(super) flags: u16,
    /// And this. It should refuse few: those cannot be passed over in whole branches.
    pub(super) accept: &'a dyn Fn(&Node) -> bool,
}

impl Among<'_> {
    fn takes(&self, node: &Node) -> bool {
        u16::from(node.seen()) & self.flags != 0 && (self.accept)(node)
    }
}

fn weight(node: &Node) -> u32 {
    u32::from_be_bytes(node.key.as_bytes()[..4].try_into().expect("a key has 32 bytes"))
}

impl Nodes {
    /// The seen flags of all children together.
    pub(super) fn children_flags(&self, parent: NodeId) -> u16 {
        match self[parent].child {
            NONE => 0,
            top => u16::from(self[top].below),
        }
    }

    /// The child with exactly these tokens.
    pub(super) fn child_of(&self, parent: NodeId, tokens: &[u32]) -> Option<NodeId> {
        let mut at = self[parent].child;
        while at != NONE {
            at = match self.compare(at, tokens).0 {
                Ordering::Equal => return Some(at),
                Ordering::Less => self[at].right,
                Ordering::Greater => self[at].left,
            };
        }
        None
    }

    /// The child that shares the most leading tokens with `tokens`, and how many; of two that share equally many, the
    /// one that was used last. `None` when no child may be found; the number may be 0.
    pub(super) fn nearest(
        &self,
        parent: NodeId,
        tokens: &[u32],
        among: &Among<'_>,
    ) -> Option<(NodeId, usize)> {
        let top = self[parent].child;
        let before = self.last_until(top, tokens, among);
        // An equal one cannot be outdone, and in a chain without siblings it is the only one.
        if let Some(id) = before
            && self.compare(id, tokens).0 == Ordering::Equal
        {
            return Some((id, usize::from(self[id].len)));
        }
        let both = [before, self.first_after(top, tokens, among)];
        let shared = both.into_iter().flatten().map(|id| (id, self.compare(id, tokens).1));
        shared.max_by_key(|&(id, shared)| (shared, self[id].last_use_ms))
    }

    /// The last child in order that is not after `tokens`.
    pub(super) fn last_until(&self, top: NodeId, tokens: &[u32], among: &Among<'_>) -> Option<NodeId> {
        if top == NONE || u16::from(self[top].below) & among.flags == 0 {
            return None;
        }
        let node = &self[top];
        if self.compare(top, tokens).0 == Ordering::Greater {
            return self.last_until(node.left, tokens, among);
        }
        self.last_until(node.right, tokens, among)
            .or_else(|| among.takes(node).then_some(top))
            .or_else(|| self.last_until(node.left, tokens, among))
    }

    /// The first child in order that is after `tokens`.
    pub(super) fn first_after(&self, top: NodeId, tokens: &[u32], among: &Among<'_>) -> Option<NodeId> {
        if top == NONE || u16::from(self[top].below) & among.flags == 0 {
            return None;
        }
        let node = &self[top];
        if self.compare(top, tokens).0 != Ordering::Greater {
            return self.first_after(node.right, tokens, among);
        }
        self.first_after(node.left, tokens, among)
            .or_else(|| among.takes(node).then_some(top))
            .or_else(|| self.first_after(node.right, tokens, among))
    }

    /// Children of a node, in order of their tokens.
    pub(super) fn children(&self, parent: NodeId) -> Vec<NodeId> {
        let (mut open, mut found) = (Vec::new(), Vec::new());
        let mut at = self[parent].child;
        while at != NONE || !open.is_empty() {
            while at != NONE {
                open.push(at);
                at = self[at].left;
            }
            let next = open.pop().expect("a node is open");
            found.push(next);
            at = self[next].right;
        }
        found
    }

    /// Adds a child that is new.
    pub(super) fn link(&mut self, parent: NodeId, id: NodeId) {
        let mut tokens = [0; BLOCK_TOKENS];
        let len = self.read_tokens(id, &mut tokens);
        let top = self.insert(self[parent].child, id, &tokens[..len]);
        self[parent].child = top;
    }

    /// Takes a child out.
    pub(super) fn unlink(&mut self, parent: NodeId, id: NodeId) {
        let mut tokens = [0; BLOCK_TOKENS];
        let len = self.read_tokens(id, &mut tokens);
        let top = self.take(self[parent].child, id, &tokens[..len]);
        self[parent].child = top;
    }

    /// Brings the sums along the way to a child up to date with the child's flags.
    pub(super) fn refresh(&mut self, parent: NodeId, id: NodeId) {
        let top = self[parent].child;
        if top == id {
            return self.sum(id);
        }
        let mut tokens = [0; BLOCK_TOKENS];
        let len = self.read_tokens(id, &mut tokens);
        self.sum_towards(top, id, &tokens[..len]);
    }

    fn sum_towards(&mut self, top: NodeId, id: NodeId, tokens: &[u32]) {
        if top != id {
            let next = self.towards(top, tokens);
            self.sum_towards(next, id, tokens);
        }
        self.sum(top);
    }

    /// The branch of `top` where `tokens` belong.
    fn towards(&self, top: NodeId, tokens: &[u32]) -> NodeId {
        match self.compare(top, tokens).0 {
            Ordering::Less => self[top].right,
            Ordering::Greater => self[top].left,
            Ordering::Equal => panic!("two siblings have equal tokens"),
        }
    }

    fn sum(&mut self, id: NodeId) {
        let below = |id: NodeId| if id == NONE { 0 } else { self[id].below };
        let Node { left, right, .. } = self[id];
        self[id].below = self[id].seen() | below(left) | below(right);
    }

    fn insert(&mut self, top: NodeId, id: NodeId, tokens: &[u32]) -> NodeId {
        if top == NONE {
            self.sum(id);
            return id;
        }
        if weight(&self[id]) > weight(&self[top]) {
            let (left, right) = self.split(top, tokens);
            self[id].left = left;
            self[id].right = right;
            self.sum(id);
            return id;
        }
        if self.compare(top, tokens).0 == Ordering::Less {
            self[top].right = self.insert(self[top].right, id, tokens);
        } else {
            self[top].left = self.insert(self[top].left, id, tokens);
        }
        self.sum(top);
        top
    }

    /// Parts a tree into what comes before and what comes after `tokens`.
    fn split(&mut self, top: NodeId, tokens: &[u32]) -> (NodeId, NodeId) {
        if top == NONE {
            return (NONE, NONE);
        }
        let parts = if self.compare(top, tokens).0 == Ordering::Less {
            let (left, right) = self.split(self[top].right, tokens);
            self[top].right = left;
            (top, right)
        } else {
            let (left, right) = self.split(self[top].left, tokens);
            self[top].left = right;
            (left, top)
        };
        self.sum(top);
        parts
    }

    fn take(&mut self, top: NodeId, id: NodeId, tokens: &[u32]) -> NodeId {
        if top == id {
            let Node { left, right, .. } = self[id];
            self[id].left = NONE;
            self[id].right = NONE;
            return self.join(left, right);
        }
        if self.compare(top, tokens).0 == Ordering::Less {
            self[top].right = self.take(self[top].right, id, tokens);
        } else {
            self[top].left = self.take(self[top].left, id, tokens);
        }
        self.sum(top);
        top
    }

    /// One tree of two, of which all of `left` comes first.
    fn join(&mut self, left: NodeId, right: NodeId) -> NodeId {
        if left == NONE || right == NONE {
            return if left == NONE { right } else { left };
        }
        let top = if weight(&self[left]) > weight(&self[right]) {
            self[left].right = self.join(self[left].right, right);
            left
        } else {
            self[right].left = self.join(left, self[right].left);
            right
        };
        self.sum(top);
        top
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::BlockKey;
    use proptest::prelude::*;

    fn shared(a: &[u32], b: &[u32]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    proptest! {
        /// Against a scan of all children, while flags change and children come and go.
        #[test]
        fn the_nearest_child_is_the_one_that_a_scan_finds(
            steps in prop::collection::vec((0u8..3, prop::collection::vec(0u32..3, 1..6), 0u16..4), 1..80),
            asked in prop::collection::vec(0u32..3, 1..7),
        ) {
            let mut nodes = Nodes::new();
            let root_key = BlockKey::from_bytes([1; 32]);
            let root = nodes.create(root_key, NONE, &[]);
            let mut kept: std::collections::BTreeMap<Vec<u32>, NodeId> = Default::default();
            for (step, tokens, flags) in steps {
                match (step, kept.get(&tokens).copied()) {
                    (0, None) => {
                        let id = nodes.create(root_key.child(&tokens), root, &tokens);
                        kept.insert(tokens, id);
                    }
                    (1, Some(id)) => {
                        nodes[id].flags = flags;
                        nodes.refresh(root, id);
                    }
                    (2, Some(id)) => {
                        nodes.remove(id);
                        kept.remove(&tokens);
                    }
                    _ => {}
                }
                prop_assert_eq!(nodes.children(root), kept.values().copied().collect::<Vec<_>>());
                let all = kept.values().fold(0, |all, &id| all | u16::from(nodes[id].seen()));
                prop_assert_eq!(nodes.children_flags(root), all);
                for flags in [1, 2, 3] {
                    let among = Among { flags, accept: &|node| node.len > 1 };
                    let best = kept.iter().filter(|&(_, &id)| among.takes(&nodes[id]));
                    let best = best.map(|(tokens, _)| shared(tokens, &asked)).max();
                    let found = nodes.nearest(root, &asked, &among);
                    prop_assert_eq!(found.map(|(_, shared)| shared), best);
                    if let Some((id, count)) = found {
                        prop_assert!(among.takes(&nodes[id]));
                        prop_assert_eq!(shared(&nodes.tokens(id), &asked), count);
                    }
                }
                for (tokens, &id) in &kept {
                    prop_assert_eq!(nodes.child_of(root, tokens), Some(id));
                }
            }
        }
    }
}
