//! A store that is a list in memory: what the real one must answer.

use zllm_state::{Content, DatabaseError, Object, ObjectName, ObjectOrder, ObjectRetention, ObjectStore};

type Pieces = Vec<Vec<u8>>;

/// All that is kept, in the order in which it was first put, and how long.
#[derive(Debug, Clone)]
pub(crate) struct Twin {
    pub(crate) objects: Vec<(Object, Pieces)>,
    /// Contents that no object has.
    pub(crate) loose: Vec<(Content, Pieces)>,
    pub(crate) retention: ObjectRetention,
}

impl Twin {
    pub(crate) fn new(retention: ObjectRetention) -> Self {
        Self { objects: Vec::new(), loose: Vec::new(), retention }
    }

    /// Whether they may be put.
    pub(crate) fn put(&mut self, objects: &[Object], now_ms: u64) -> bool {
        if !self.may_put(objects) {
            return false;
        }
        for object in objects {
            let before = self.objects.iter().position(|(other, _)| other.name == object.name);
            let loose = self.loose.iter().position(|(content, _)| Some(*content) == object.content);
            let pieces = match (loose, before) {
                (Some(at), _) => self.loose.remove(at).1,
                (None, Some(at)) if object.content.is_some() => self.objects[at].1.clone(),
                _ => Vec::new(),
            };
            match before {
                Some(at) => self.objects[at] = (object.clone(), pieces),
                None => self.objects.push((object.clone(), pieces)),
            }
        }
        let staying: Vec<_> = objects.iter().map(|object| object.name.clone()).collect();
        self.expire_but(&staying, now_ms);
        true
    }

    /// Whether each tenant may have these when it has nothing else.
    fn may_put(&self, objects: &[Object]) -> bool {
        let is_last = |at: usize| objects[at + 1..].iter().all(|other| other.name != objects[at].name);
        let last: Vec<_> = (0..objects.len()).filter(|at| is_last(*at)).map(|at| &objects[at]).collect();
        last.iter().all(|object| {
            let own = last.iter().filter(|other| other.name.tenant == object.name.tenant);
            let bytes = |own: &&Object| own.value.len() as u64 + own.content.map_or(0, |own| own.bytes());
            own.clone().count() as u64 <= self.retention.tenant_objects
                && own.map(bytes).sum::<u64>() <= self.retention.tenant_bytes
        })
    }

    pub(crate) fn delete(&mut self, names: &[ObjectName]) -> Vec<bool> {
        let were = names.iter().map(|name| self.objects.iter().any(|(object, _)| object.name == *name));
        let were = were.collect();
        self.objects.retain(|(object, _)| !names.contains(&object.name));
        were
    }

    pub(crate) fn append(&mut self, before: Content, after: Content, piece: &[u8]) {
        let at = self.loose.iter().position(|(content, _)| *content == before);
        let (content, pieces) = &mut self.loose[at.expect("it is loose")];
        *content = after;
        pieces.push(piece.to_vec());
    }

    pub(crate) fn expire(&mut self, now_ms: u64) {
        self.expire_but(&[], now_ms);
    }

    fn expire_but(&mut self, staying: &[ObjectName], now_ms: u64) {
        let due = |object: &Object| object.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms);
        self.objects.retain(|(object, _)| !due(object) || staying.contains(&object.name));
        loop {
            let ObjectRetention { max_age_ms, max_objects, max_bytes, tenant_objects, tenant_bytes } =
                self.retention;
            let over = self.is_over(|_| true, max_objects, max_bytes);
            let is_old = |object: &Object| now_ms.saturating_sub(object.created_ms) > max_age_ms;
            let tenant_over = |object: &Object| {
                let own = |other: &Object| other.name.tenant == object.name.tenant;
                self.is_over(own, tenant_objects, tenant_bytes)
            };
            let oldest = |goes: &dyn Fn(&Object) -> bool| {
                let candidates = self.objects.iter().map(|(object, _)| object).enumerate();
                let candidates =
                    candidates.filter(|(_, object)| !staying.contains(&object.name) && goes(object));
                candidates.min_by_key(|(at, object)| (object.created_ms, *at)).map(|(at, _)| at)
            };
            let goes = oldest(&tenant_over).or_else(|| oldest(&|object| over || is_old(object)));
            let Some(at) = goes else { return };
            self.objects.remove(at);
        }
    }

    /// Whether there are more of these objects, or of their bytes.
    fn is_over(&self, of: impl Fn(&Object) -> bool, max_objects: u64, max_bytes: u64) -> bool {
        let (mut objects, mut bytes) = (0, 0);
        for (object, pieces) in self.objects.iter().filter(|(object, _)| of(object)) {
            objects += 1;
            bytes += (object.value.len() + pieces.iter().map(Vec::len).sum::<usize>()) as u64;
        }
        objects > max_objects || bytes > max_bytes
    }

    /// What differs between this and the real store.
    pub(crate) fn compare(&self, store: &mut ObjectStore) -> Result<(), String> {
        let say = |error: DatabaseError| error.to_string();
        for (object, pieces) in &self.objects {
            let name = &object.name;
            if store.get(name).map_err(say)?.as_ref() != Some(object) {
                return Err(format!("{name:?} is another"));
            }
            let Some(content) = object.content else { continue };
            for (at, piece) in (0..).zip(pieces.iter().map(Some).chain([None])) {
                if store.piece(content, at).map_err(say)?.as_ref() != piece {
                    return Err(format!("{name:?} has another piece {at}"));
                }
            }
        }
        for (content, pieces) in &self.loose {
            for (at, piece) in (0..).zip(pieces) {
                if store.piece(*content, at).map_err(say)?.as_ref() != Some(piece) {
                    return Err(format!("loose {content:?} has another piece {at}"));
                }
            }
        }
        for kind in ["answer", "file"] {
            for tenant in ["", "tenant", "nobody"] {
                self.compare_lists(store, kind, tenant)?;
            }
        }
        Ok(())
    }

    fn compare_lists(&self, store: &mut ObjectStore, kind: &str, tenant: &str) -> Result<(), String> {
        for order in [ObjectOrder::OldestFirst, ObjectOrder::NewestFirst] {
            let mut list = |after: Option<&str>, limit| {
                let listed = store.list(kind, tenant, after, limit, order);
                listed.map_err(|error| error.to_string())
            };
            let of_list = |object: &&Object| (&*object.name.kind, &*object.name.tenant) == (kind, tenant);
            let mut expected: Vec<_> =
                self.objects.iter().map(|(object, _)| object).filter(of_list).cloned().collect();
            if order == ObjectOrder::NewestFirst {
                expected.reverse();
            }
            if list(None, usize::MAX)? != Some(expected.clone()) {
                return Err(format!("other objects of {kind:?} and {tenant:?} are listed"));
            }
            let Some(middle) = expected.get(expected.len() / 2) else { continue };
            let behind: Vec<_> = expected.iter().skip(expected.len() / 2 + 1).take(2).cloned().collect();
            if list(Some(&middle.name.id), 2)? != Some(behind) {
                return Err(format!("other objects are listed behind {:?}", middle.name));
            }
            if list(Some("no such id"), 2)?.is_some() {
                return Err("a list begins behind what is not there".to_owned());
            }
        }
        Ok(())
    }
}
