// Lists the operations of /openapi.json with their fields.
"use strict";

let components = {};

function make(tag, text, ...children) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function resolved(schema) {
  return schema.$ref ? components[schema.$ref.split("/").pop()] : schema;
}

// "integer 1..128", "string or list of string", ...
function kind(schema) {
  const name = schema.$ref && schema.$ref.split("/").pop();
  const branches = schema.anyOf || schema.oneOf;
  if (name) return name;
  if (branches) return branches.map(kind).filter((one) => one !== "null").join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items || {})}`;
  const low = schema.minimum ?? (schema.exclusiveMinimum !== undefined ? `above ${schema.exclusiveMinimum}` : "");
  const high = schema.maximum ?? (schema.exclusiveMaximum !== undefined ? `below ${schema.exclusiveMaximum}` : "");
  return `${schema.type || "any"}${low !== "" || high !== "" ? ` (${low} to ${high})` : ""}`;
}

function fields(schema, seen) {
  const body = resolved(schema);
  const list = make("ul");
  for (const [name, field] of Object.entries(body.properties || {})) {
    const required = (body.required || []).includes(name) ? ", required" : "";
    const item = make("li", "", make("code", name), ` ${kind(field)}${required}`);
    for (const branch of [field, ...(field.anyOf || [])]) {
      const inner = branch.items || branch;
      const next = inner.$ref && inner.$ref.split("/").pop();
      if (next && !seen.includes(next)) item.append(fields(inner, [...seen, next]));
    }
    list.append(item);
  }
  return list;
}

function operation(path, method, one) {
  const title = make("h2", "", make("code", `${method.toUpperCase()} ${path}`));
  const section = make("section", "", title, make("p", one.description || one.summary));
  const body = one.requestBody && one.requestBody.content["application/json"].schema;
  if (body) section.append(make("p", resolved(body).description || ""), fields(body, []));
  const answers = Object.entries(one.responses).filter(([status]) => !["200", "422"].includes(status));
  section.append(make("ul", "", ...answers.map(([status, answer]) => make("li", `${status}: ${answer.description}`))));
  return section;
}

async function show() {
  const key = sessionStorage.getItem("key");
  const response = await fetch("/openapi.json", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
  const description = await response.json();
  if (!response.ok) throw new Error(`${description.error.message}; the page at / takes a key`);
  components = description.components.schemas;
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, one] of Object.entries(methods)) {
      document.getElementById("operations").append(operation(path, method, one));
    }
  }
}

show().catch((error) => {
  document.getElementById("problem").hidden = false;
  document.getElementById("problem").textContent = error.message;
});
