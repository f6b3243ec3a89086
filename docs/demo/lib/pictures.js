// Images between files, canvases and the arrays {width, height, channels, data} that everything else works with.

/** An image file as RGBA. The browser decodes it, turns it as its EXIF data say, and leaves its colours as they are. */
export async function decode(file) {
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", premultiplyAlpha: "none" }).catch(() => {
    throw new Error(`${file.name} is no image that this browser can read`);
  });
  const { width, height } = bitmap;
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return { width, height, channels: 4, data: new Uint8Array(context.getImageData(0, 0, width, height).data.buffer) };
}

const SMALL = 64; // pixels: shown as squares instead of smoothed

export function drawInto(canvas, { width, height, channels, data }) {
  Object.assign(canvas, { width, height });
  canvas.classList.toggle("small", Math.max(width, height) <= SMALL);
  const pixels = new ImageData(width, height), colours = channels === 1 ? [0, 0, 0] : [0, 1, 2];
  for (let n = 0; n < width * height; n++) {
    colours.forEach((from, to) => pixels.data[n * 4 + to] = data[n * channels + from]);
    pixels.data[n * 4 + 3] = 255;
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}
