/* Pictures as the network takes them: scaled and cropped as in training, to the byte (runtime/resize_pictures.py, Pillow
   before 13; from 13 on some pixels of tall pictures differ by 1). */
const BITS = 22; /* of a weight's fraction */

/* Weights of a triangle filter along one axis from `start` to `end`: for each place, the first pixel and its weights. */
function filterWeights(size, start, end, places) {
  const scale = Math.fround(end - start) / places, support = Math.max(scale, 1);
  return Array.from({ length: places }, (_, place) => {
    const centre = start + (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const last = Math.min(size, Math.trunc(centre + support + 0.5));
    const weights = [];
    for (let x = first; x < last; x++) weights.push(Math.max(0, 1 - Math.abs((x - centre + 0.5) * (1 / support))));
    const sum = weights.reduce((a, b) => a + b, 0);
    return { first, weights: weights.map((weight) => Math.trunc(0.5 + (sum ? weight / sum : weight) * 2 ** BITS)) };
  });
}

/* Scale one axis. Picture: {width, height, channels, pixels}, pixels by row, column, channel. */
function scaleAxis(picture, across, start, end, places) {
  const { width, height, channels, pixels } = picture, size = across ? width : height;
  if (places === size && start === 0 && end === size) return picture;
  const result = across ? { ...picture, width: places } : { ...picture, height: places };
  result.pixels = new Uint8Array(result.width * result.height * channels);
  const step = across ? channels : width * channels;
  filterWeights(size, start, end, places).forEach(({ first, weights }, place) => {
    for (let other = 0; other < (across ? height : width); other++)
      for (let channel = 0; channel < channels; channel++) {
        let from = (across ? other * width * channels : other * channels) + first * step + channel;
        let sum = 2 ** (BITS - 1);
        for (const weight of weights) { sum += weight * pixels[from]; from += step; }
        const at = across ? other * places + place : place * width + other;
        result.pixels[at * channels + channel] = Math.min(255, sum >> BITS);
      }
  });
  return result;
}

function scaled(picture, width, height, box = [0, 0, picture.width, picture.height]) {
  const [left, top, right, bottom] = box.map(Math.fround);
  return scaleAxis(scaleAxis(picture, true, left, right, width), false, top, bottom, height);
}

/* Cut the longer side, in the middle. */
function fitted(picture, width, height) {
  const ratio = width / height, own = picture.width / picture.height;
  const wide = own === ratio || own < ratio ? picture.width : ratio * picture.height;
  const high = own === ratio || own >= ratio ? picture.height : picture.width / ratio;
  const left = (picture.width - wide) * 0.5, top = (picture.height - high) * 0.5;
  return scaled(picture, width, height, [left, top, left + wide, top + high]);
}

function halfToEven(x) {
  const low = Math.floor(x);
  return x - low === 0.5 ? low + (low & 1) : Math.round(x);
}

/* Copy a picture to (x, y) of a black one, or a part of it where that is smaller. */
function placed(picture, width, height, x, y) {
  const { channels } = picture, pixels = new Uint8Array(width * height * channels);
  for (let row = 0; row < height; row++)
    for (let column = 0; column < width; column++) {
      const fromRow = row - y, fromColumn = column - x;
      if (fromRow < 0 || fromColumn < 0 || fromRow >= picture.height || fromColumn >= picture.width) continue;
      const from = (fromRow * picture.width + fromColumn) * channels;
      for (let channel = 0; channel < channels; channel++)
        pixels[(row * width + column) * channels + channel] = picture.pixels[from + channel];
    }
  return { width, height, channels, pixels };
}

/* Keep the aspect ratio and add black. */
function padded(picture, side) {
  const ratio = picture.width / picture.height;
  const width = ratio < 1 ? halfToEven((picture.width / picture.height) * side) : side;
  const height = ratio > 1 ? halfToEven((picture.height / picture.width) * side) : side;
  const inside = scaled(picture, width, height);
  return placed(inside, side, side, halfToEven((side - width) * 0.5), halfToEven((side - height) * 0.5));
}

/* RGBA bytes, as a canvas gives them, to a picture of 1 or 3 channels. */
function fromCanvas(rgba, width, height, channels) {
  const pixels = new Uint8Array(width * height * channels);
  for (let i = 0; i < width * height; i++) {
    const r = rgba[4 * i], g = rgba[4 * i + 1], b = rgba[4 * i + 2];
    if (channels === 1) { pixels[i] = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16; continue; }
    pixels[3 * i] = r;
    pixels[3 * i + 1] = g;
    pixels[3 * i + 2] = b;
  }
  return { width, height, channels, pixels };
}

/* The picture in the network's size. */
function prepare(picture, { height, width, resize, fit }) {
  if (resize === null) return fitted(picture, width, height);
  const how = { stretch: scaled, crop: fitted, pad: padded }[fit];
  const whole = how(picture, resize, resize);
  return placed(whole, width, height, -halfToEven((resize - width) / 2), -halfToEven((resize - height) / 2));
}

/* Channel by channel. */
function planes({ width, height, channels, pixels }) {
  const result = new Uint8Array(pixels.length), size = width * height;
  for (let i = 0; i < size; i++)
    for (let channel = 0; channel < channels; channel++) result[channel * size + i] = pixels[i * channels + channel];
  return result;
}
