//! Values of a task's own settings, in the types that their defaults have.

use crate::cli::error::Error;
use serde_json::Value;

/// A task's value in the type that its default has. Words of the command line are read as that type.
pub(super) fn typed(name: &str, value: Value, default: &Value) -> Result<Value, Error> {
    let fits = |value: &Value| match default {
        Value::Bool(_) => value.is_boolean(),
        Value::Number(n) if n.is_u64() => value.is_u64(),
        Value::Number(n) if n.is_i64() => value.is_i64(),
        Value::Number(_) => value.is_number(),
        Value::String(_) => value.is_string(),
        Value::Array(_) => value.is_array(),
        Value::Object(_) => value.is_object(),
        Value::Null => true,
    };
    let read = match &value {
        Value::String(text) if !default.is_string() => {
            serde_json::from_str(text).unwrap_or_else(|_| value.clone())
        }
        _ => value,
    };
    if fits(&read) {
        return Ok(read);
    }
    let kind = match default {
        Value::Bool(_) => "true or false",
        Value::Number(n) if n.is_u64() => "a whole number, at least 0",
        Value::Number(n) if n.is_i64() => "a whole number",
        Value::Number(_) => "a number",
        Value::Array(_) => "a list such as [1,2]",
        Value::Object(_) => "an object such as {\"a\":1}",
        Value::String(_) | Value::Null => "a text",
    };
    let given = read.as_str().map_or_else(|| read.to_string(), str::to_owned);
    Err(Error::usage(format!(
        "{name}={given} is not possible: give {kind}, for example {name}={}",
        bare(default)
    )))
}

/// A text without its quotes, anything else as JSON.
pub(super) fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
