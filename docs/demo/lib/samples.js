// The first test digit of each class, from models/digits/digits.npz (licence: models/digits/LICENSE-digits.txt).
// codes: 8 x 8 shades from 0 to 16, one character each in base 17.

export const SAMPLES = [
  { label: 0, index: 30, codes: "00aeb30004gd6e1004g20b7008g00a5008g00e4008g01g1004g1bf0000bgc300" },
  { label: 1, index: 85, codes: "0001g5000005gb00000cgb0007cgg700048cg4000009g200000ag2000003d500" },
  { label: 2, index: 2, codes: "0004fc00003gfe00008d8g000016fb00018df10009gg500003dggb500003bg90" },
  { label: 3, index: 23, codes: "018cfe4003b88cc000002d700002fc100000d50000009d000078ef0000efb200" },
  { label: 4, index: 14, codes: "0008f100001ed11000af3fb007g71g8009gdeg5001afge000001ga00000af400" },
  { label: 5, index: 25, codes: "00c8870003ggb70002e1000005e5000002fg90000002g2000048g40000be9000" },
  { label: 6, index: 58, codes: "000ad10001bc700002gc000004gb000004gf840004ggdg60007g7de00007ff50" },
  { label: 7, index: 7, codes: "0078dgf100774bc000008d100488ff6002bff400000g5000009f100000d50000" },
  { label: 8, index: 38, codes: "0077dg4000dd6c7000a4ab10008ga00003eg0000088b500004a9800001bg6000" },
  { label: 9, index: 39, codes: "019gd70007e4ac0006f9gb00009b7e0000000f2000000b6003d85e50009eda10" },
];

const SIDE = 8, LIGHTEST = 16;

/** A sample as a grey image {width, height, channels, data} of 0 to 255. */
export function sampleImage({ codes }) {
  const data = Uint8Array.from(codes, code => Math.round(parseInt(code, 17) * (255 / LIGHTEST)));
  return { width: SIDE, height: SIDE, channels: 1, data };
}
