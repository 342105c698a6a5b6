//! Tools in OpenAI's form, in which templates show them and clients of several APIs send them, and whether the model may call
//! them.

use crate::http::problem::Problem;
use serde_json::Value;

/// The tools to show, in OpenAI's form. Only what the model may decide by itself is served: `choice` auto or none.
///
/// # Errors
/// What cannot be honoured, by its name.
pub(super) fn shown(tools: Option<Vec<Value>>, choice: Option<Value>) -> Result<Vec<Value>, Problem> {
    let tools = tools.unwrap_or_default();
    let tools = match choice {
        None | Some(Value::Null) => tools,
        Some(choice) if choice == "auto" => tools,
        // Not to be called, so not to be spoken of.
        Some(choice) if choice == "none" => Vec::new(),
        Some(_) => {
            let message = "tool_choice other than \"auto\" and \"none\" is not served yet";
            return Err(Problem::of("tool_choice", message));
        }
    };
    for (place, tool) in tools.iter().enumerate() {
        let refused = |field: &str, what: &str| {
            let param = format!("tools[{place}]{field}");
            Err(Problem::of(&param, format!("{param} {what}")))
        };
        if tool["type"] != "function" {
            return refused(".type", "is not \"function\", the only kind that is served");
        }
        if tool["function"]["name"].as_str().is_none_or(str::is_empty) {
            return refused(".function.name", "is missing");
        }
        if tool["function"]["strict"] == true {
            return refused(".function.strict", "is not served yet");
        }
    }
    Ok(tools)
}
