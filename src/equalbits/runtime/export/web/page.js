/* The page: a picture in, the most likely classes out. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const TIMED_MS = 20, LARGEST = 4096; /* time spent on timing; longest side of a picture that is read in full */
const DRAWN = 280, PEN = 20, FRAME_MS = 50, TOP = 5;
const at = (id) => document.getElementById(id);
let engine, stream = null, drawing = false, turn = 0;

function bytesOf(text) {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

async function inflate(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function element(tag, text = "", parent = null, name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  if (parent) parent.append(made);
  return made;
}

function bar(parent, share, name = "bar") {
  element("i", "", element("div", "", parent, name)).style.width = `${100 * share}%`;
}

function paint(canvas, { width, height, channels, pixels }) {
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    for (let channel = 0; channel < 3; channel++)
      image.data[4 * i + channel] = pixels[i * channels + (channels === 1 ? 0 : channel)];
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/* The canvas is what the user sees; context.willReadFrequently keeps its pixels on the CPU. */
const shown = at("shown"), context = shown.getContext("2d", { willReadFrequently: true });

function resizeShown(width, height) {
  shown.width = width;
  shown.height = height;
  shown.classList.toggle("small", Math.max(width, height) < DRAWN);
  at("empty").hidden = true;
}

function classifyShown() {
  const rgba = context.getImageData(0, 0, shown.width, shown.height).data;
  classify(prepare(fromCanvas(rgba, shown.width, shown.height, DATA.channels), DATA));
}

/* Classify a picture of the network's size. */
function classify(picture) {
  const image = planes(picture), logits = engine.run(image), start = performance.now();
  let runs = 0, taken = 0;
  for (; taken < TIMED_MS; runs++, taken = performance.now() - start) engine.run(image);
  const ms = taken / runs, most = Math.max(...logits);
  const weights = Array.from(logits, (logit) => Math.exp(logit - most)), sum = weights.reduce((a, b) => a + b, 0);
  const order = weights.map((_, i) => i).sort((a, b) => logits[b] - logits[a] || a - b).slice(0, TOP);
  paint(at("seen"), picture);
  at("input").hidden = false;
  at("classes").replaceChildren();
  for (const i of order) {
    const line = element("li", "", at("classes"));
    element("span", DATA.classes[i] ?? `class ${i}`, line);
    element("span", `${(100 * weights[i] / sum).toFixed(1)} %`, line);
    bar(line, weights[i] / sum);
  }
  at("time").textContent = `${ms < 10 ? ms.toFixed(2) : ms.toFixed(0)} ms an image, on one thread`;
  document.body.dataset.logits = JSON.stringify(Array.from(logits));
}

async function showFile(file) {
  const name = file.name || "picture";
  let picture;
  stop();
  const mine = turn;
  try {
    /* Turned as its EXIF says, which Chromium always does; PackedModel.prepare does so for files without resize. */
    picture = await createImageBitmap(file, { colorSpaceConversion: "none", imageOrientation: "from-image" });
  } catch {
    at("status").textContent = `${name} is not a picture that this browser can read`;
    return;
  }
  if (mine !== turn) return; /* another picture came meanwhile */
  const shrink = Math.min(1, LARGEST / Math.max(picture.width, picture.height));
  resizeShown(Math.max(1, Math.round(picture.width * shrink)), Math.max(1, Math.round(picture.height * shrink)));
  context.drawImage(picture, 0, 0, shown.width, shown.height);
  at("status").textContent = `${name}, ${picture.width} × ${picture.height}`;
  picture.close();
  classifyShown();
}

function showExample(picture, number) {
  stop();
  resizeShown(picture.width, picture.height);
  paint(shown, picture);
  at("status").textContent = `Test image ${number + 1}`;
  classify(picture);
}

/* End the camera and drawing. */
function stop() {
  turn++;
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  drawing = false;
  shown.classList.remove("drawing");
  at("pen").hidden = true;
  for (const id of ["camera", "draw"]) at(id).setAttribute("aria-pressed", "false");
}

async function startCamera() {
  const wasOn = stream;
  stop();
  if (wasOn) return;
  const mine = turn, video = Object.assign(document.createElement("video"), { muted: true, playsInline: true });
  let opened;
  try {
    opened = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    video.srcObject = opened;
    await video.play();
  } catch {
    opened?.getTracks().forEach((track) => track.stop());
    at("status").textContent = "There is no camera here: allow it, or open this page as a file or over https";
    return;
  }
  if (mine !== turn) return opened.getTracks().forEach((track) => track.stop());
  stream = opened;
  at("camera").setAttribute("aria-pressed", "true");
  at("status").textContent = "Press Camera again to keep this picture";
  const look = () => {
    if (mine !== turn) return;
    resizeShown(video.videoWidth, video.videoHeight);
    context.drawImage(video, 0, 0);
    classifyShown();
    setTimeout(look, FRAME_MS);
  };
  look();
}

function startDrawing() {
  stop();
  drawing = true;
  resizeShown(DRAWN, DRAWN);
  context.fillRect(0, 0, DRAWN, DRAWN);
  Object.assign(context, { lineWidth: PEN, lineCap: "round", lineJoin: "round" });
  shown.classList.add("drawing");
  at("pen").hidden = DATA.channels === 1;
  at("draw").setAttribute("aria-pressed", "true");
  at("status").textContent = "Draw with a finger or the mouse; press Draw again to clear";
  classifyShown();
}

function stroke(event) {
  if (!drawing || !event.buttons) return;
  const box = shown.getBoundingClientRect(), scale = DRAWN / box.width;
  const point = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  if (event.type === "pointerdown") {
    shown.setPointerCapture(event.pointerId);
    context.strokeStyle = at("pen").value;
    context.beginPath();
    context.moveTo(...point);
  }
  context.lineTo(...point);
  context.stroke();
}

function describe() {
  const count = (number) => number.toLocaleString("en");
  const size = (bytes) => bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
  const weights = DATA.layers.reduce((sum, layer) => sum + layer.weights, 0);
  at("facts").textContent = `Packed file ${size(DATA.packed_bytes)} · ${count(weights)} weights of one bit · ` +
    `input ${DATA.channels} × ${DATA.height} × ${DATA.width} · engine ${size(DATA.engine_bytes)}`;
  for (const layer of DATA.layers) {
    element("span", layer.name, at("layers"));
    element("span", `${(100 * layer.share).toFixed(2)} % of ${count(layer.weights)}`, at("layers"), "number");
    bar(at("layers"), layer.share, "bar half");
  }
  if (!DATA.layers.length) element("span", "The network has none", at("layers"));
  const { filters, pictures, binary, ...shape } = DATA.filters;
  for (const pixels of pictures) paint(element("canvas", "", at("filters")), { ...shape, pixels });
  at("first").hidden = !pictures.length;
  const some = pictures.length < filters ? `The first ${pictures.length} of ${filters}. ` : "";
  const colors = shape.channels === 3 ? "in each of red, green and blue" : "";
  at("legend").textContent = some + (binary ? `Light is +1, dark is −1 ${colors}` : `Real weights, light is positive ${colors}`);
}

async function showExamples() {
  const { width, height, channels } = DATA, bytes = await inflate(DATA.examples), size = width * height * channels;
  for (let number = 0; number < bytes.length / size; number++) {
    const picture = { width, height, channels, pixels: bytes.slice(number * size, (number + 1) * size) };
    const button = element("button", "", at("examples"));
    button.setAttribute("aria-label", `Test image ${number + 1}`);
    paint(element("canvas", "", button), picture);
    button.onclick = () => showExample(picture, number);
    if (number === 0) showExample(picture, number);
  }
}

async function start() {
  describe();
  try {
    engine = await Engine.load(await inflate(DATA.engine), await inflate(DATA.plan));
  } catch (error) {
    at("status").textContent = `The engine does not run in this browser: ${error.message}`;
    return;
  }
  await showExamples();
  for (const name of ["dragover", "dragleave", "drop"])
    addEventListener(name, (event) => {
      event.preventDefault();
      at("drop").classList.toggle("over", name === "dragover");
      if (name === "drop" && event.dataTransfer.files[0]) showFile(event.dataTransfer.files[0]);
    });
  addEventListener("paste", (event) => event.clipboardData.files[0] && showFile(event.clipboardData.files[0]));
  at("file").onchange = (event) => {
    if (event.target.files[0]) showFile(event.target.files[0]);
    event.target.value = ""; /* so that the same file can be chosen again */
  };
  at("camera").onclick = startCamera;
  at("draw").onclick = startDrawing;
  for (const name of ["pointerdown", "pointermove"]) shown.addEventListener(name, stroke);
  shown.addEventListener("pointerup", () => drawing && classifyShown());
  document.body.dataset.ready = "yes";
}
start();
