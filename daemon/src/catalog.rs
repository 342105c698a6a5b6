//! Which models there are: those of the configuration by name, and every `NAME.gguf` of the models folder. A split model
//! is one, named by what its parts' names begin with; its file is the first part.

use crate::config::{LoadWhen, ModelDefaults, ModelSettings};
use std::collections::{BTreeMap, btree_map};
use std::path::{Path, PathBuf};
use zllm_engine::gguf::{SplitName, part_paths};

/// The models that can be asked for.
#[derive(Debug, Clone)]
pub(crate) struct Catalog {
    configured: BTreeMap<String, ModelSettings>,
    folder: Option<PathBuf>,
    defaults: ModelDefaults,
}

impl Catalog {
    pub(crate) fn new(
        configured: BTreeMap<String, ModelSettings>,
        folder: Option<PathBuf>,
        defaults: ModelDefaults,
    ) -> Self {
        Self { configured, folder, defaults }
    }

    /// What a model gets of which the configuration says nothing.
    pub(crate) fn defaults(&self) -> &ModelDefaults {
        &self.defaults
    }

    /// The settings of `name`. A configured model goes before a file of the same name.
    pub(crate) fn find(&self, name: &str) -> Option<ModelSettings> {
        self.configured.get(name).cloned().or_else(|| {
            // A name comes from a client: it must not lead out of the folder.
            let plain = !name.is_empty() && !name.contains(['/', '\0']) && !name.starts_with('.');
            let folder = self.folder.as_ref().filter(|_| plain)?;
            let path = folder.join(format!("{name}.gguf"));
            let path = if path.is_file() { path } else { split_models(folder).remove(name)? };
            Some(self.in_folder(path))
        })
    }

    /// All models by name. A folder that cannot be read has none.
    pub(crate) fn list(&self) -> BTreeMap<String, ModelSettings> {
        let mut files = BTreeMap::new();
        if let Some(folder) = &self.folder {
            files.extend(split_models(folder));
            // A whole file goes before a split one of the same name.
            files.extend(names(folder).into_iter().filter_map(|file| {
                let name = file.strip_suffix(".gguf").filter(|_| SplitName::parse(&file).is_none())?;
                Some((name.to_owned(), folder.join(&file)))
            }));
        }
        let mut models: BTreeMap<_, _> =
            files.into_iter().map(|(name, path)| (name, self.in_folder(path))).collect();
        models.extend(self.configured.clone());
        models
    }

    fn in_folder(&self, path: PathBuf) -> ModelSettings {
        ModelSettings { path, load: LoadWhen::Demand, template: None, defaults: self.defaults.clone() }
    }
}

/// Bytes of a model's files; what cannot be read counts nothing.
pub(crate) fn file_bytes(path: &Path) -> u64 {
    part_paths(path).iter().filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.len()).sum()
}

/// The first parts in a folder, by the model's name. Of several models of the same name the one with the fewest parts is
/// taken, so that it is always the same.
fn split_models(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut files = names(folder);
    files.sort_unstable();
    let mut models = BTreeMap::new();
    for file in &files {
        let Some(SplitName { prefix, number: 1, .. }) = SplitName::parse(file) else { continue };
        if let btree_map::Entry::Vacant(entry) = models.entry(prefix.to_owned()) {
            entry.insert(folder.join(file));
        }
    }
    models
}

/// The names in a folder, in no order, without hidden ones.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use zllm_engine::KvFormat;

    pub(crate) fn defaults() -> ModelDefaults {
        ModelDefaults {
            kv_format: KvFormat::I16,
            kv_budget_bytes: 1 << 20,
            ram_budget_bytes: 0,
            lock_memory: false,
            context_tokens: None,
            tokenizer_pre: None,
            threads: None,
            place: crate::config::PlaceSettings::default(),
            prefill_chunk_tokens: 64,
            batch_rows: 4,
        }
    }

    #[test]
    fn files_and_configured_models_are_found_and_nothing_outside_of_the_folder() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let models = folder.path().join("models");
        std::fs::create_dir(&models).expect("scratch folder");
        for file in
            ["models/a.gguf", "models/b.gguf", "models/.hidden.gguf", "models/note.txt", "outside.gguf"]
        {
            std::fs::write(folder.path().join(file), "").expect("scratch file");
        }
        let (path, load) = ("/special/b".into(), LoadWhen::Demand);
        let special = ModelSettings { path, load, template: None, defaults: defaults() };
        let configured = BTreeMap::from([("b".to_owned(), special)]);
        let catalog = Catalog::new(configured, Some(models.clone()), defaults());
        assert_eq!(catalog.list().into_keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(catalog.find("a").expect("a file").path, models.join("a.gguf"));
        assert_eq!(catalog.find("b").expect("configured").path, PathBuf::from("/special/b"));
        for wrong in ["c", "", "../outside", "/etc/passwd", ".hidden", "a\0"] {
            assert!(catalog.find(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn a_split_model_is_listed_once_by_its_first_part() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let write = |name: &str, bytes: usize| {
            std::fs::write(folder.path().join(name), vec![0; bytes]).expect("scratch file");
        };
        write("big-00001-of-00003.gguf", 1);
        write("big-00002-of-00003.gguf", 20);
        write("big-00003-of-00003.gguf", 300);
        write("headless-00002-of-00002.gguf", 1);
        write("both.gguf", 7);
        write("both-00001-of-00002.gguf", 1);
        let catalog = Catalog::new(BTreeMap::new(), Some(folder.path().to_owned()), defaults());
        let listed = catalog.list();
        assert_eq!(listed.keys().collect::<Vec<_>>(), ["big", "both"]);
        let first = folder.path().join("big-00001-of-00003.gguf");
        assert_eq!((&listed["big"].path, file_bytes(&listed["big"].path)), (&first, 321));
        assert_eq!(catalog.find("big").expect("a split model").path, first);
        assert_eq!(catalog.find("both").expect("a whole model").path, folder.path().join("both.gguf"));
        assert_eq!(file_bytes(&listed["both"].path), 7);
        assert!(catalog.find("headless").is_none());
    }
}
