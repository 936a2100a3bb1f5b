// A form for what a model reads, and the answer in words: for the page of a run, and for that of `annulus serve`.

/** A field for each of these inputs. */
export function fields(inputs) {
  return inputs.map(({ name, kind, values }) => {
    const field = document.createElement({ category: "select", text: "textarea" }[kind] ?? "input");
    if (kind === "category") field.append(...["", ...values].map((value) => new Option(value || "not known", value)));
    else if (kind === "text") Object.assign(field, { rows: 3, placeholder: "not known" });
    else if (kind === "date") field.type = "date";
    else if (kind === "picture") Object.assign(field, { type: "file", accept: "image/png,image/jpeg", required: true });
    else Object.assign(field, { type: "number", step: "any", placeholder: "not known" });
    // A form has its fields by their names, in the place of its own properties too.
    field.dataset.column = name;
    const label = document.createElement("label");
    label.append(name, field);
    return label;
  });
}

/** What a person has put into the fields: a picture, or a row as JSON. What is empty is not known. */
export function asked(form) {
  const filled = [...form.elements].filter(({ dataset }) => dataset.column !== undefined);
  const row = Object.fromEntries(filled.map(({ dataset, value }) => [dataset.column, value === "" ? null : value]));
  return form.querySelector("[type=file]")?.files[0] ?? JSON.stringify(row);
}

/** The answer to one row, as pairs of a name and a value: what is predicted, then the classes, the likeliest first. */
export function told({ predictions: [{ probabilities = {}, ...predicted }] }) {
  const classes = Object.entries(probabilities).sort(([, a], [, b]) => b - a);
  return [...Object.entries(predicted), ...classes.map(([name, share]) => [name, `${(100 * share).toFixed(1)} %`])];
}
