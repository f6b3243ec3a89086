// What an ONNX file says about itself. onnxruntime-web does not hand on metadata_props, so they are read from the bytes.

const METADATA_PROPS = 14; // of ModelProto: repeated StringStringEntryProto
const KEY = 1, VALUE = 2; // of StringStringEntryProto
const VARINT = 0, EIGHT_BYTES = 1, LENGTH_DELIMITED = 2, FOUR_BYTES = 5; // protobuf's wire types

/** The metadata of an ONNX file as an object of strings. Only lengths are read of everything else, weights included. */
export function readMetadata(bytes) {
  const found = {};
  for (const [field, entry] of fields(bytes)) {
    if (field !== METADATA_PROPS) continue;
    if (!(entry instanceof Uint8Array)) throw notProtobuf("metadata_props is not a message");
    const parts = Object.fromEntries(fields(entry));
    found[text(parts[KEY])] = text(parts[VALUE]);
  }
  return found;
}

/** [field number, value] of every field of a message: bytes where it is length-delimited, else null. */
function* fields(bytes) {
  let place = 0;
  const varint = () => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) { // not by shifts: a length may need more than 31 bits
      const byte = bytes[place++];
      if (byte === undefined || factor > 2 ** 63) throw notProtobuf(`it ends, or a number does not, at byte ${place - 1}`);
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  while (place < bytes.length) {
    const tag = varint(), field = Math.floor(tag / 8), type = tag % 8;
    if (field === 0) throw notProtobuf(`field 0 at byte ${place - 1}`);
    if (type === LENGTH_DELIMITED) {
      const length = varint(), start = place;
      place += length;
      if (place > bytes.length) throw notProtobuf(`field ${field} is cut off`);
      yield [field, bytes.subarray(start, place)];
    } else {
      if (type === VARINT) varint();
      else if (type === EIGHT_BYTES) place += 8;
      else if (type === FOUR_BYTES) place += 4;
      else throw notProtobuf(`wire type ${type} at byte ${place - 1}`);
      yield [field, null];
    }
  }
}

const text = bytes => bytes ? new TextDecoder().decode(bytes) : ""; // protobuf leaves empty strings out

const notProtobuf = why => new Error(`not an ONNX file: ${why}`);
