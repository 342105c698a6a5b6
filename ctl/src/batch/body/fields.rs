//! An object's fields, each taken out once; what is left at the end was not understood.

use serde_json::{Map, Value};

/// The fields that nobody has taken.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn new(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// A field's value; `null` is the same as absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(format!("{name} is not a text, or an empty one")),
        }
    }

    pub(super) fn boolean(&mut self, name: &str) -> Result<Option<bool>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(format!("{name} is neither true nor false")),
        }
    }

    pub(super) fn float(&mut self, name: &str) -> Result<Option<f32>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number as f32)),
                None => Err(format!("{name} is not a number")),
            },
        }
    }

    /// A number without fraction or sign that is not too large for its field.
    pub(super) fn whole<T: TryFrom<u64>>(&mut self, name: &str) -> Result<Option<T>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_u64().and_then(|number| number.try_into().ok()) {
                Some(number) => Ok(Some(number)),
                None => Err(format!("{name} is not a whole number from 0 on, or too large")),
            },
        }
    }

    /// # Errors
    /// The first field that nobody has taken.
    pub(super) fn none_left(self) -> Result<(), String> {
        // An absent field and a `null` are the same, known or not.
        match self.0.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => Err(format!("unknown field {name:?}")),
        }
    }
}
