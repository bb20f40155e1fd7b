/* The page: a picture in, the most likely classes out. */
const at = (id) => document.getElementById(id);
const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const inflate = async (text) =>
  new Uint8Array(await new Response(new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer());
const RUNS = 10, LARGEST = 4096; /* runs that are timed; the longest side of a picture that is decoded in full */
let engine, stream, drawing = false;

function element(tag, text = "", parent = null, name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  if (parent) parent.append(made);
  return made;
}

function bar(parent, share) {
  element("i", "", element("div", "", parent, "bar")).style.width = `${100 * share}%`;
}

function paint(canvas, { width, height, channels, pixels }) {
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++)
    for (let channel = 0; channel < 4; channel++)
      image.data[4 * i + channel] = channel === 3 ? 255 : pixels[i * channels + (channels === 1 ? 0 : channel)];
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function classify(canvas) {
  const { width, height } = canvas, rgba = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const input = prepare(fromCanvas(rgba, width, height, DATA.channels), DATA), image = planes(input);
  const logits = engine.run(image), taken = [];
  for (let i = 0; i < (stream ? 1 : RUNS); i++) {
    const start = performance.now();
    engine.run(image);
    taken.push(performance.now() - start);
  }
  const ms = taken.sort((a, b) => a - b)[taken.length >> 1], most = Math.max(...logits);
  const weights = Array.from(logits, (logit) => Math.exp(logit - most)), sum = weights.reduce((a, b) => a + b, 0);
  const order = weights.map((_, i) => i).sort((a, b) => logits[b] - logits[a] || a - b).slice(0, 5);
  paint(at("seen"), input);
  at("classes").replaceChildren();
  for (const i of order) {
    const line = element("li", "", at("classes"));
    element("span", DATA.classes[i] ?? `class ${i}`, line);
    element("span", `${(100 * weights[i] / sum).toFixed(1)} %`, line);
    bar(line, weights[i] / sum);
  }
  at("time").textContent = `${ms < 10 ? ms.toFixed(2) : ms.toFixed(0)} ms an image on one thread`;
  document.body.dataset.logits = JSON.stringify(Array.from(logits));
}

async function showFile(file) {
  try {
    const options = { colorSpaceConversion: "none", imageOrientation: DATA.resize === null ? "from-image" : "none" };
    const picture = await createImageBitmap(file, options), shown = at("shown");
    stop();
    const shrink = Math.min(1, LARGEST / Math.max(picture.width, picture.height));
    shown.width = Math.round(picture.width * shrink);
    shown.height = Math.round(picture.height * shrink);
    shown.getContext("2d").drawImage(picture, 0, 0, shown.width, shown.height);
    at("hint").textContent = `${file.name || "picture"}, ${picture.width} × ${picture.height}`;
    classify(shown);
  } catch (error) {
    at("hint").textContent = `${file.name || "this"} is not a picture that this browser can read`;
    document.body.dataset.error = String(error);
  }
}

function stop() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  drawing = false;
  at("video").hidden = true;
  at("shown").hidden = false;
  for (const id of ["camera", "draw"]) at(id).setAttribute("aria-pressed", "false");
}

async function startCamera() {
  if (stream) return stop();
  stop();
  const video = at("video"), frame = document.createElement("canvas");
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    at("hint").textContent = "the camera is not available: allow it, or open this page over https or as a file";
    return;
  }
  video.srcObject = stream;
  await video.play();
  video.hidden = false;
  at("shown").hidden = true;
  at("camera").setAttribute("aria-pressed", "true");
  at("hint").textContent = "Camera is on: press again to stop";
  const look = () => {
    if (!stream) return;
    frame.width = video.videoWidth;
    frame.height = video.videoHeight;
    frame.getContext("2d", { willReadFrequently: true }).drawImage(video, 0, 0);
    classify(frame);
    setTimeout(look, 100);
  };
  look();
}

function startDrawing() {
  stop();
  drawing = true;
  const shown = at("shown"), context = shown.getContext("2d");
  shown.width = shown.height = 280;
  context.fillRect(0, 0, 280, 280);
  Object.assign(context, { strokeStyle: "#fff", lineWidth: 20, lineCap: "round", lineJoin: "round" });
  at("draw").setAttribute("aria-pressed", "true");
  at("hint").textContent = "Draw in white on black; press Draw again to clear";
}

function stroke(event) {
  if (!drawing || !event.buttons) return;
  const shown = at("shown"), box = shown.getBoundingClientRect(), context = shown.getContext("2d");
  const point = [(event.clientX - box.left) * 280 / box.width, (event.clientY - box.top) * 280 / box.height];
  if (event.type === "pointerdown") { context.beginPath(); context.moveTo(...point); }
  context.lineTo(...point);
  context.stroke();
}

function describe() {
  const kB = (bytes) => `${(bytes / 1000).toFixed(1)} kB`;
  at("facts").textContent = `network ${kB(DATA.packed_bytes)} · engine ${kB(DATA.engine_bytes)} · ` +
    `${DATA.channels} × ${DATA.height} × ${DATA.width} pixels in`;
  for (const layer of DATA.layers) {
    element("span", layer.name, at("layers"));
    bar(at("layers"), layer.share);
    element("span", `${(100 * layer.share).toFixed(2)} % of ${layer.weights.toLocaleString("en")}`, at("layers"), "number");
  }
  if (!DATA.layers.length) element("span", "no layer of bits", at("layers"));
  for (const pixels of DATA.filters.pictures) {
    const { width, height, channels } = DATA.filters;
    paint(element("canvas", "", at("filters")), { width, height, channels, pixels });
  }
}

async function start() {
  describe();
  try {
    engine = await Engine.load(await inflate(DATA.engine), await inflate(DATA.plan));
  } catch (error) {
    at("hint").textContent = `the engine does not run in this browser: ${error.message}`;
    return;
  }
  const drop = at("drop");
  for (const name of ["dragover", "dragleave", "drop"])
    addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", name === "dragover");
      if (name === "drop" && event.dataTransfer.files[0]) showFile(event.dataTransfer.files[0]);
    });
  addEventListener("paste", (event) => event.clipboardData.files[0] && showFile(event.clipboardData.files[0]));
  at("file").onchange = (event) => event.target.files[0] && showFile(event.target.files[0]);
  at("camera").onclick = startCamera;
  at("draw").onclick = startDrawing;
  for (const name of ["pointerdown", "pointermove"]) at("shown").addEventListener(name, stroke);
  addEventListener("pointerup", () => drawing && classify(at("shown")));
  document.body.dataset.ready = "yes";
}
start();
