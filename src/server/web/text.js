"use strict";
// Text of people and models as elements. Markup in it stays text: pieces become text nodes only.

// make("p", {class: "note", title: "..."}, "text", child): attributes, listeners ("onclick") and
// children. Values that are null, undefined or false are left out.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// ---- Blocks ----

const kFence = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const kHeading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const kItem = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;

// The blocks of a text: {kind: "code", language, text}, {kind: "heading", level, text},
// {kind: "list", items: [{ordered, number, depth, text}]}, {kind: "paragraph", text}. A fence that
// is not closed yet goes to the end.
function parseBlocks(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let paragraph = [];
  const endParagraph = () => {
    if (paragraph.length > 0) blocks.push({kind: "paragraph", text: paragraph.join("\n")});
    paragraph = [];
  };
  for (let i = 0; i < lines.length; ++i) {
    const line = lines[i];
    const fence = kFence.exec(line);
    const heading = kHeading.exec(line);
    if (fence) {
      endParagraph();
      const code = [];
      const isEnd = (each) => {
        const end = each.trim();
        return end.startsWith(fence[1]) && end.replaceAll(fence[1][0], "") === "";
      };
      for (++i; i < lines.length && !isEnd(lines[i]); ++i) code.push(lines[i]);
      blocks.push({kind: "code", language: fence[2], text: code.join("\n")});
    } else if (heading) {
      endParagraph();
      blocks.push({kind: "heading", level: heading[1].length, text: heading[2]});
    } else if (kItem.test(line) && (paragraph.length === 0 || line.trimStart() === line)) {
      endParagraph();
      const items = [];
      i = readItems(lines, i, items) - 1;
      blocks.push({kind: "list", items});
    } else if (line.trim() === "") {
      endParagraph();
    } else {
      paragraph.push(line);
    }
  }
  endParagraph();
  return blocks;
}

// Reads the items of one list from line `i` on; returns the line behind them.
function readItems(lines, i, items) {
  for (; i < lines.length; ++i) {
    const item = kItem.exec(lines[i]);
    if (item) {
      const depth = Math.min(Math.floor(item[1].replaceAll("\t", "    ").length / 2), 5);
      if (depth === 0 && items.length > 0 && items[0].ordered === Boolean(item[2])) return i;
      items.push({ordered: !item[2], number: Number(item[3]), depth, text: item[4]});
    } else if (lines[i].trim() === "") {
      if (i + 1 >= lines.length || !kItem.test(lines[i + 1])) return i;
    } else if (/^\s{2,}\S/.test(lines[i]) && !kFence.test(lines[i])) {
      items[items.length - 1].text += "\n" + lines[i].trim();
    } else {
      return i;
    }
  }
  return i;
}

// ---- Inline ----

// Text nodes, <code> and <strong>. A mark that is not closed is text.
function inlineNodes(text) {
  const nodes = [];
  const unclosed = new Set();  // a mark that no later one closes is not looked for again
  let plain = "";
  const push = (node) => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
    nodes.push(node);
  };
  for (let i = 0; i < text.length;) {
    const mark = markAt(text, i);
    const end = mark && !unclosed.has(mark) ? closing(text, i + mark.length, mark) : -1;
    if (end < 0) {
      if (mark) unclosed.add(mark);
      const size = mark ? mark.length : 1;
      plain += text.slice(i, i + size);
      i += size;
      continue;
    }
    const inner = text.slice(i + mark.length, end);
    push(mark === "**" ? make("strong", {}, inlineNodes(inner)) : make("code", {}, inner));
    i = end + mark.length;
  }
  if (plain) nodes.push(document.createTextNode(plain));
  return nodes;
}

function markAt(text, i) {
  if (text[i] === "`") {
    let end = i;
    while (text[end] === "`") ++end;
    return text.slice(i, end);
  }
  return text.startsWith("**", i) && /\S/.test(text[i + 2] ?? "") ? "**" : "";
}

// Where a mark is that closes one, behind something; -1 for nowhere.
function closing(text, from, mark) {
  for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at + 1)) {
    const isRun = mark !== "**" && (text[at - 1] === "`" || text[at + mark.length] === "`");
    if (at > from && !isRun) return at;
  }
  return -1;
}

// ---- Elements ----

function blockElement(block) {
  if (block.kind === "code") return codeElement(block);
  if (block.kind === "list") return listElement(block);
  if (block.kind === "heading") {
    // The page's own headings come above those of a message.
    return make("h" + Math.min(block.level + 2, 6), {}, inlineNodes(block.text));
  }
  return make("p", {}, inlineNodes(block.text));
}

function listElement(block) {
  const isOrdered = block.items[0].ordered;
  return make(isOrdered ? "ol" : "ul", isOrdered ? {start: block.items[0].number} : {},
    block.items.map((item) => make("li", {
      class: "depth-" + item.depth + (item.ordered ? " numbered" : " bullet"),
      value: item.ordered ? item.number : null,
    }, inlineNodes(item.text))));
}

function codeElement(block) {
  const copy = make("button", {type: "button", class: "quiet",
    onclick: () => copyText(block.text, copy)}, "Copy code");
  return make("figure", {class: "code"},
    make("figcaption", {}, make("span", {}, block.language || "text"), copy),
    make("pre", {tabindex: "0", role: "region", "aria-label": "code"},
      make("code", {}, block.text)));
}

// Shows `text` in `element`. Blocks that are as before keep their elements, and with them what is
// selected there.
function showText(element, text) {
  const blocks = parseBlocks(text);
  const shown = element.shownBlocks ?? [];
  const keys = blocks.map((block) => JSON.stringify(block));
  for (let i = 0; i < blocks.length; ++i) {
    if (shown[i] === keys[i]) continue;
    const made = blockElement(blocks[i]);
    if (i < element.children.length) element.children[i].replaceWith(made);
    else element.append(made);
  }
  while (element.children.length > blocks.length) element.lastElementChild.remove();
  element.shownBlocks = keys;
}

// ---- Copying ----

// The clipboard of the browser is there on safe connections alone; elsewhere a selection does it.
async function copyText(text, button) {
  let done = false;
  if (navigator.clipboard) {
    done = await navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  if (!done) {
    const area = make("textarea", {class: "unseen", "aria-hidden": "true"});
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const label = button.textContent;
  if (label === "Copied" || label === "Not copied") return;
  button.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}
