// Shows the OpenAPI document of this server and sends requests to it. No markup is ever made from text:
// everything goes through textContent.
"use strict";

const METHODS = ["get", "post", "patch", "put", "delete"];

/** Makes an element: el("p", {class: "quiet"}, "text", child…). */
function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

function resolve(spec, node) {
  let current = node;
  for (let i = 0; current && current.$ref && i < 20; i += 1) {
    current = current.$ref.slice(2).split("/").reduce((at, part) => at && at[part], spec);
  }
  return current || {};
}

/** A short name of a schema's type. */
function typeName(spec, schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const alternatives = schema.oneOf || schema.anyOf;
  if (alternatives) return alternatives.map((part) => typeName(spec, part)).join(" or ");
  if (schema.allOf) return schema.allOf.map((part) => typeName(spec, part)).join(" and ");
  const types = [].concat(schema.type || "any JSON");
  const named = types.map((type) => (type === "array" ? `list of ${typeName(spec, schema.items)}` : type));
  return named.join(" or ");
}

function limits(schema) {
  const said = [];
  if (schema.format && !/^u?int|^double/.test(schema.format)) said.push(schema.format);
  if (schema.minimum !== undefined && schema.maximum !== undefined) said.push(`${schema.minimum}–${schema.maximum}`);
  if (schema.minLength !== undefined || schema.maxLength !== undefined) {
    said.push(`${schema.minLength || 0}–${schema.maxLength} characters`);
  }
  if (schema.maxItems !== undefined) said.push(`${schema.minItems || 0}–${schema.maxItems} items`);
  if (schema.pattern) said.push(schema.pattern);
  if (schema.default !== undefined) said.push(`default ${JSON.stringify(schema.default)}`);
  return said.join(", ");
}

/** The members of an object schema, those of its parts included. */
function membersOf(spec, schema) {
  const object = resolve(spec, schema);
  const members = [];
  for (const part of object.allOf || []) members.push(...membersOf(spec, part));
  for (const [name, member] of Object.entries(object.properties || {})) {
    members.push({ name, member, required: (object.required || []).includes(name) });
  }
  return members;
}

/** An example of a schema, for the body field. */
function exampleOf(spec, schema, depth = 0) {
  const plain = resolve(spec, schema);
  if (plain.example !== undefined) return plain.example;
  if (plain.examples && plain.examples.length) return plain.examples[0];
  if (plain.default !== undefined) return plain.default;
  if (depth > 6) return null;
  const types = [].concat(plain.type || []);
  if (types.includes("array")) return [exampleOf(spec, plain.items, depth + 1)];
  if (types.includes("object") || plain.properties || plain.allOf) {
    const example = {};
    for (const { name, member, required } of membersOf(spec, plain)) {
      if (required) example[name] = exampleOf(spec, member, depth + 1);
    }
    return example;
  }
  if (types.includes("boolean")) return true;
  if (types.includes("integer") || types.includes("number")) return plain.minimum || 1;
  if (types.includes("string")) return "";
  return types.length ? null : {}; // any JSON
}

function schemaTable(spec, schema, seen = []) {
  const object = resolve(spec, schema);
  const members = membersOf(spec, object);
  const box = el("div");
  if (object.description && !seen.length) box.append(el("p", { class: "quiet" }, object.description));
  if (members.length) {
    const rows = members.map(({ name, member, required }) => {
      const own = resolve(spec, member);
      const text = el("td", {}, el("p", {}, member.description || own.description || ""));
      const said = limits(own);
      if (said) text.append(el("p", { class: "quiet" }, said));
      return el("tr", {}, el("td", {}, el("code", {}, name), required ? "" : " ?"),
        el("td", {}, typeName(spec, member)), text);
    });
    box.append(el("table", {}, el("tbody", {}, ...rows)));
  }
  for (const ref of refsOf(object)) {
    if (seen.includes(ref) || seen.length > 6) continue;
    const inner = schemaTable(spec, { $ref: ref }, [...seen, ref]);
    if (inner.childNodes.length) box.append(el("h3", {}, ref.split("/").pop()), inner);
  }
  return box;
}

function refsOf(schema) {
  const found = new Set();
  const visit = (node) => {
    if (!node || typeof node !== "object") return;
    if (typeof node.$ref === "string") found.add(node.$ref);
    else Object.values(node).forEach(visit);
  };
  Object.values(schema.properties || {}).forEach(visit);
  visit(schema.items);
  for (const part of schema.allOf || []) visit(part.$ref ? {} : part.properties);
  for (const part of schema.oneOf || []) visit(part);
  return found;
}

function parameterRow(spec, parameter) {
  const schema = resolve(spec, parameter.schema);
  const input = el("input", { type: "text", name: parameter.name, "aria-label": parameter.name, spellcheck: "false" });
  input.dataset.in = parameter.in;
  const about = el("td", {}, el("p", {}, parameter.description || ""));
  const said = limits(schema);
  if (said) about.append(el("p", { class: "quiet" }, said));
  return el("tr", {},
    el("td", {}, el("code", {}, parameter.name), parameter.required ? "" : " ?", el("p", { class: "quiet" }, `in ${parameter.in}`)),
    about, el("td", {}, input));
}

function request(method, path, form, body) {
  let url = path;
  const query = new URLSearchParams();
  const headers = {};
  for (const input of form.querySelectorAll("input[name]")) {
    if (input.dataset.in === "path") url = url.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else if (input.value !== "" && input.dataset.in === "query") query.append(input.name, input.value);
    else if (input.value !== "" && input.dataset.in === "header") headers[input.name] = input.value;
  }
  const key = document.getElementById("key").value.trim();
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const rest = query.toString();
  return fetch(rest ? `${url}?${rest}` : url, {
    method: method.toUpperCase(), headers, body, cache: "no-store", credentials: "omit",
  });
}

async function show(output, sent) {
  output.replaceChildren("Waiting…");
  try {
    const started = performance.now();
    const response = await sent;
    const text = await response.text();
    const took = Math.round(performance.now() - started);
    output.replaceChildren(
      el("p", { class: response.ok ? "" : "bad" }, `${response.status} ${response.statusText} · ${took} ms`),
      el("pre", { tabindex: "0" }, readable(text)));
  } catch (error) {
    output.replaceChildren(el("p", { class: "bad" }, String(error)));
  }
}

function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function operationView(spec, path, method, operation) {
  const scopes = (operation.security || []).flatMap((entry) => Object.values(entry).flat());
  const form = el("form", { autocomplete: "off" });
  const parameters = (operation.parameters || []).map((parameter) => resolve(spec, parameter));
  if (parameters.length) {
    form.append(el("h3", {}, "Parameters"),
      el("table", {}, el("tbody", {}, ...parameters.map((parameter) => parameterRow(spec, parameter)))));
  }
  const bodySchema = operation.requestBody?.content?.["application/json"]?.schema;
  let body;
  if (bodySchema) {
    body = el("textarea", { "aria-label": "Body", spellcheck: "false" });
    const written = operation.requestBody.content["application/json"].example;
    body.value = JSON.stringify(written ?? exampleOf(spec, bodySchema), null, 2);
    form.append(el("h3", {}, "Body"), schemaTable(spec, bodySchema, [bodySchema.$ref || ""]), body);
  }
  const output = el("div", { "aria-live": "polite" });
  form.append(el("button", { type: "submit" }, "Send"), output);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(output, request(method, path, form, body ? body.value : undefined));
  });

  const responses = Object.entries(operation.responses || {}).map(([status, response]) => {
    const plain = resolve(spec, response);
    const schema = Object.values(plain.content || {})[0]?.schema;
    return el("tr", {}, el("td", {}, el("code", {}, status)), el("td", {}, plain.description || ""),
      el("td", {}, typeName(spec, schema)));
  });
  const examples = Object.entries(operation.responses || {}).flatMap(([status, response]) => {
    const example = Object.values(resolve(spec, response).content || {})[0]?.example;
    return example === undefined ? [] : [el("h3", {}, `Example: ${status}`),
      el("pre", { tabindex: "0" }, typeof example === "string" ? example : JSON.stringify(example, null, 2))];
  });
  const good = Object.entries(operation.responses || {}).find(([status]) => status.startsWith("2"));
  const goodSchema = good && Object.values(resolve(spec, good[1]).content || {})[0]?.schema;

  return el("details", { id: operation.operationId },
    el("summary", {}, el("span", { class: `method ${method}` }, method), el("code", {}, path),
      el("span", {}, operation.summary || ""),
      scopes.length ? el("span", { class: "scope" }, `scope ${scopes.join(", ")}`) : undefined),
    el("div", {}, el("p", {}, operation.description || ""), form,
      el("h3", {}, "Responses"), el("table", {}, el("tbody", {}, ...responses)), ...examples,
      goodSchema && el("h3", {}, typeName(spec, goodSchema)),
      goodSchema && schemaTable(spec, goodSchema, [goodSchema.$ref || ""])));
}

/** A request that the server sends to an endpoint. */
function webhookView(spec, name, operation) {
  const rows = (operation.parameters || []).map((header) =>
    el("tr", {}, el("td", {}, el("code", {}, header.name)), el("td", {}, header.description || ""),
      el("td", {}, el("code", {}, header.example || ""))));
  const responses = Object.entries(operation.responses || {}).map(([status, response]) =>
    el("tr", {}, el("td", {}, el("code", {}, status)), el("td", {}, response.description || "")));
  const example = operation.requestBody?.content?.["application/json"]?.example;
  return el("details", { id: operation.operationId },
    el("summary", {}, el("span", { class: "method post" }, "post"), el("code", {}, name), el("span", {}, operation.summary || "")),
    el("div", {}, el("p", {}, operation.description || ""),
      el("h3", {}, "Headers"), el("table", {}, el("tbody", {}, ...rows)),
      el("h3", {}, "Body"), el("pre", { tabindex: "0" }, JSON.stringify(example, null, 2)),
      el("h3", {}, "Responses"), el("table", {}, el("tbody", {}, ...responses))));
}

function operationsOf(spec, tag) {
  const operations = [];
  for (const [path, item] of Object.entries(spec.paths)) {
    for (const method of METHODS) {
      if (item[method] && (item[method].tags || []).includes(tag)) operations.push([path, method, item[method]]);
    }
  }
  return operations;
}

function render(spec) {
  document.getElementById("title").textContent = `${spec.info.title} API ${spec.info.version}`;
  document.getElementById("description").textContent = spec.info.description || "";
  const routes = document.getElementById("routes");
  const contents = document.getElementById("contents");
  routes.replaceChildren();
  for (const tag of spec.tags || []) {
    routes.append(el("h2", {}, tag.name), el("p", { class: "quiet" }, tag.description || ""));
    contents.append(el("h2", {}, tag.name));
    for (const [path, method, operation] of operationsOf(spec, tag.name)) {
      routes.append(operationView(spec, path, method, operation));
      contents.append(el("a", { href: `#${operation.operationId}` }, operation.summary || path));
    }
  }
  const webhooks = Object.entries(spec.webhooks || {});
  if (webhooks.length) {
    routes.append(el("h2", {}, "webhooks"), el("p", { class: "quiet" }, "What your endpoint receives"));
    contents.append(el("h2", {}, "webhooks"));
  }
  for (const [name, item] of webhooks) {
    routes.append(webhookView(spec, name, item.post));
    contents.append(el("a", { href: `#${item.post.operationId}` }, item.post.summary || name));
  }
  openFromAddress();
}

/** Opens the route that the address points to. */
function openFromAddress() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
}

async function start() {
  document.getElementById("key-form").addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", openFromAddress);
  try {
    const response = await fetch("/openapi.json");
    if (!response.ok) throw new Error(`/openapi.json returned ${response.status}`);
    render(await response.json());
  } catch (error) {
    document.getElementById("status").textContent = `The document could not be loaded: ${error.message}`;
  }
}

start();
