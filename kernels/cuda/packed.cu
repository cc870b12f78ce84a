// Slots packed into bodies, and bodies expanded into slots. What a body is stands in kernels/packed_form.py; plans,
// references and bytes in kernels/packed.py. A warp has one block of at most 256 elements, a lane eight of them.

constexpr kv_u32 kThreads = 256;
constexpr kv_u32 kWarps = kThreads / kWarpLanes;
constexpr kv_u32 kPerLane = 8;          // kernels/packed_form.py: PER_LANE
constexpr kv_u32 kRun = 4;              // kernels/packed_form.py: RUN
constexpr kv_u32 kAlignment = 32;       // kernels/packed_form.py: ALIGNMENT
constexpr kv_u32 kBlocksAtOnce = 32;    // kernels/packed.py: BLOCKS_AT_ONCE
constexpr kv_u32 kBlocksOfWarp = kBlocksAtOnce / kWarps;
constexpr float kLeastPeak = 0x1.cp-118f;  // kernels/fp8_rows.py: LEAST_PEAK, 448 * 2^-126
static_assert(kBlocksAtOnce % kWarps == 0, "every warp has as many blocks");
static_assert(kPerLane == 8 && kRun == 4, "eight bits of eight elements fill a number of 64 bits");

// What the lossy form may make of a block.
enum Kind : kv_u32 {
  kPlain = 0,
  kFloat32 = 1,
  kBfloat16 = 2,
};

// A row of Cut.table.
struct Block {
  kv_u32 offset;    // first byte in the slot
  kv_u32 elements;
  kv_u32 item;      // bytes of an element
  kv_u32 kind;
  kv_u32 form;      // where its forms begin
};

__device__ __forceinline__ Block read_block(const kv_u32* blocks, kv_u32 number) {
  const kv_vec16 row = kv_load16(blocks + 4 * (kv_u64)number);
  return {row.x, row.y, row.z & 0xFFu, row.z >> 8, row.w};
}

// What a lane knows, for all.
__device__ __forceinline__ Block block_of_lane(const Block& block, kv_u32 lane) {
  return {__shfl_sync(kWholeWarp, block.offset, lane), __shfl_sync(kWholeWarp, block.elements, lane),
          __shfl_sync(kWholeWarp, block.item, lane), __shfl_sync(kWholeWarp, block.kind, lane),
          __shfl_sync(kWholeWarp, block.form, lane)};
}

// Forms of a block: of each plane, in a byte each, the least value and how many bits values above it take. An FP8 block
// has the bytes of its scale there: first and third among the least values, second and fourth among the bits.
struct Forms {
  kv_u64 least;
  kv_u64 width;
};

__device__ __forceinline__ kv_u32 byte_of(kv_u64 bytes, kv_u32 n) { return (kv_u32)(bytes >> (8 * n)) & 0xFFu; }

__device__ __forceinline__ float scale_of(const Forms& forms) {
  return kv_bits_float(byte_of(forms.least, 0) | byte_of(forms.width, 0) << 8 | byte_of(forms.least, 1) << 16 |
                       byte_of(forms.width, 1) << 24);
}

__device__ __forceinline__ Forms forms_of(float scale) {
  const kv_u64 bits = kv_float_bits(scale);
  return {byte_of(bits, 0) | (kv_u64)byte_of(bits, 2) << 8, byte_of(bits, 1) | (kv_u64)byte_of(bits, 3) << 8};
}

// `forms` of a body begin at a multiple of 4, and each block's at a multiple of 2.
__device__ __forceinline__ Forms read_forms(const kv_u8* forms, const Block& block) {
  Forms found = {0, 0};
  for (kv_u32 plane = 0; plane < block.item; plane++) {
    const kv_u64 pair = ((const kv_u16*)(forms + block.form))[plane];
    found.least |= (pair & 0xFFULL) << (8 * plane);
    found.width |= (pair >> 8) << (8 * plane);
  }
  return found;
}

__device__ __forceinline__ kv_u32 lanes_of(const Block& block) { return (block.elements + kPerLane - 1) / kPerLane; }

// Which element of the block is this lane's i-th; it may lie behind the last one.
__device__ __forceinline__ kv_u32 element_of(kv_u32 lanes, kv_u32 i) {
  return i / kRun * kRun * lanes + kv_lane() * kRun + i % kRun;
}

__device__ __forceinline__ kv_u32 padded(kv_u32 bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// -- Elements of a lane -----------------------------------------------------------------------------------------------
//
// An element is a number in the low bits of 64. Runs go by vectors where the part lies right for it.

struct Eight {
  kv_u64 at[kPerLane];
};

__device__ __forceinline__ kv_u64 load_one(const kv_u8* from, kv_u32 item) {
  if (item == 1) return *from;
  if (item == 2) return *(const kv_u16*)from;
  if (item == 4) return *(const kv_u32*)from;
  return *(const kv_u64*)from;
}

__device__ __forceinline__ void store_one(kv_u8* to, kv_u32 item, kv_u64 value) {
  if (item == 1) *to = (kv_u8)value;
  if (item == 2) *(kv_u16*)to = (kv_u16)value;
  if (item == 4) *(kv_u32*)to = (kv_u32)value;
  if (item == 8) *(kv_u64*)to = value;
}

// Whether runs of a block lie at multiples of their length, or of 16 bytes.
__device__ __forceinline__ bool goes_by_vectors(const kv_u8* begin, kv_u32 item) {
  return ((kv_u64)begin & (item == 8 ? 15ULL : kRun * item - 1ULL)) == 0;
}

__device__ __forceinline__ void load_run(const kv_u8* from, kv_u32 item, kv_u64* run) {
  if (item <= 2) {
    const kv_u64 bits = item == 1 ? *(const kv_u32*)from : *(const kv_u64*)from;
#pragma unroll
    for (kv_u32 i = 0; i < kRun; i++) run[i] = (bits >> (8 * item * i)) & (item == 1 ? 0xFFULL : 0xFFFFULL);
    return;
  }
  const kv_vec16 first = kv_load16(from);
  if (item == 4) {
    run[0] = first.x, run[1] = first.y, run[2] = first.z, run[3] = first.w;
    return;
  }
  const kv_vec16 second = kv_load16(from + 16);
  run[0] = first.x | (kv_u64)first.y << 32, run[1] = first.z | (kv_u64)first.w << 32;
  run[2] = second.x | (kv_u64)second.y << 32, run[3] = second.z | (kv_u64)second.w << 32;
}

__device__ __forceinline__ void store_run(kv_u8* to, kv_u32 item, const kv_u64* run) {
  if (item == 1) *(kv_u32*)to = (kv_u32)(run[0] | run[1] << 8 | run[2] << 16 | run[3] << 24);
  if (item == 2) *(kv_u64*)to = run[0] | run[1] << 16 | run[2] << 32 | run[3] << 48;
  if (item == 4) kv_store16(to, make_uint4((kv_u32)run[0], (kv_u32)run[1], (kv_u32)run[2], (kv_u32)run[3]));
  if (item == 8) {
    kv_store16(to, make_uint4((kv_u32)run[0], (kv_u32)(run[0] >> 32), (kv_u32)run[1], (kv_u32)(run[1] >> 32)));
    kv_store16(to + 16, make_uint4((kv_u32)run[2], (kv_u32)(run[2] >> 32), (kv_u32)run[3], (kv_u32)(run[3] >> 32)));
  }
}

// Those behind the last element are 0.
__device__ __forceinline__ Eight load_eight(const Block& block, const kv_u8* begin) {
  const kv_u32 lanes = lanes_of(block);
  Eight values;
#pragma unroll
  for (kv_u32 half = 0; half < kPerLane; half += kRun) {
    const kv_u32 first = element_of(lanes, half);
    kv_u64* const run = values.at + half;
    if (kv_lane() < lanes && first + kRun <= block.elements && goes_by_vectors(begin, block.item)) {
      load_run(begin + first * block.item, block.item, run);
    } else {
#pragma unroll
      for (kv_u32 i = 0; i < kRun; i++) {
        const bool is_there = kv_lane() < lanes && first + i < block.elements;
        run[i] = is_there ? load_one(begin + (first + i) * block.item, block.item) : 0ULL;
      }
    }
  }
  return values;
}

__device__ __forceinline__ void store_eight(const Block& block, kv_u8* begin, const Eight& values) {
  const kv_u32 lanes = lanes_of(block);
  if (kv_lane() >= lanes) return;
#pragma unroll
  for (kv_u32 half = 0; half < kPerLane; half += kRun) {
    const kv_u32 first = element_of(lanes, half);
    const kv_u64* const run = values.at + half;
    if (first + kRun <= block.elements && goes_by_vectors(begin, block.item)) {
      store_run(begin + first * block.item, block.item, run);
    } else {
#pragma unroll
      for (kv_u32 i = 0; i < kRun; i++)
        if (first + i < block.elements) store_one(begin + (first + i) * block.item, block.item, run[i]);
    }
  }
}

__device__ __forceinline__ kv_u64 mask_of(kv_u32 item) { return ~0ULL >> (64 - 8 * item); }

// Turned by one bit among those of the element: the sign comes down, the exponent goes up.
__device__ __forceinline__ kv_u64 turned_left(kv_u64 value, kv_u32 item) {
  return (value << 1 | value >> (8 * item - 1)) & mask_of(item);
}

__device__ __forceinline__ kv_u64 turned_right(kv_u64 value, kv_u32 item) {
  return (value >> 1 | value << (8 * item - 1)) & mask_of(item);
}

// -- Bits of a lane ---------------------------------------------------------------------------------------------------

// Eight times `width` bits; byte j of all lanes lies before byte j + 1.
__device__ __forceinline__ kv_u64 read_bits(const kv_u8* payload, kv_u32 lanes, kv_u32 width) {
  kv_u64 bits = 0;
  if (kv_lane() < lanes)
    for (kv_u32 j = 0; j < width; j++) bits |= (kv_u64)payload[j * lanes + kv_lane()] << (8 * j);
  return bits;
}

__device__ __forceinline__ void write_bits(kv_u8* payload, kv_u32 lanes, kv_u32 width, kv_u64 bits) {
  if (kv_lane() < lanes)
    for (kv_u32 j = 0; j < width; j++) payload[j * lanes + kv_lane()] = (kv_u8)(bits >> (8 * j));
}

__device__ __forceinline__ float number_of(kv_u32 kind, kv_u64 bits) {
  return kind == kFloat32 ? kv_bits_float((kv_u32)bits) : kv_bf16_to_float((kv_u16)bits);
}

__device__ __forceinline__ kv_u64 bits_of_number(kv_u32 kind, float value) {
  return kind == kBfloat16 ? kv_float_to_bf16(value) : kv_canonical_bits(value);
}

// -- Expand -----------------------------------------------------------------------------------------------------------

__device__ __forceinline__ Eight expanded_planes(const Block& block, const Forms& forms, const kv_u8* payload) {
  const kv_u32 lanes = lanes_of(block);
  Eight values = {{0, 0, 0, 0, 0, 0, 0, 0}};
  for (kv_u32 plane = 0; plane < block.item; plane++) {
    const kv_u32 least = byte_of(forms.least, plane), width = byte_of(forms.width, plane);
    const kv_u64 bits = read_bits(payload, lanes, width);
    const kv_u64 mask = (1ULL << width) - 1ULL;
#pragma unroll
    for (kv_u32 i = 0; i < kPerLane; i++)
      values.at[i] |= ((((bits >> (i * width)) & mask) + least) & 0xFFULL) << (8 * plane);
    payload += width * lanes;
  }
#pragma unroll
  for (kv_u32 i = 0; i < kPerLane; i++) values.at[i] = turned_right(values.at[i], block.item);
  return values;
}

__device__ __forceinline__ Eight expanded_codes(const Block& block, const Forms& forms, const kv_u8* payload) {
  const kv_eight numbers = kv_dequantised(read_bits(payload, lanes_of(block), 8), scale_of(forms));
  Eight values;
#pragma unroll
  for (kv_u32 i = 0; i < kPerLane; i++) values.at[i] = bits_of_number(block.kind, numbers.at[i]);
  return values;
}

// 3 blocks of a multiprocessor: for more of them the assembler would spill, on sm_100 and later.
extern "C" __global__ void __launch_bounds__(kThreads, 3) kv_expand(
    kv_u8* arena,          // [slots, stride]
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,     // [most] slots to write, each at most once
    const kv_i64* live,    // entries in use, or null: `most`
    kv_u32 most,
    const kv_u32* blocks,  // [block_count, 4]
    kv_u32 block_count,
    const kv_u8* packed,   // bodies
    const kv_u64* begins,  // [most] where each begins
    const kv_u8* lossy,    // [most]
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ kv_u64 shared_body, shared_slot;
  __shared__ kv_u32 shared_lossy;
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const kv_u32 turns = (block_count + kBlocksAtOnce - 1) / kBlocksAtOnce;
  const kv_u32 entry = blockIdx.x / turns;
  if (threadIdx.x == 0) {
    shared_slot = 0;
    if (entry < kv_in_use(live, most)) {
      const kv_i32 slot = ids[entry];
      if (kv_look(check, entry, slot, slots) == kv_refusal::kApplied) {
        shared_slot = (kv_u64)(arena + (kv_u64)slot * stride);
        shared_body = (kv_u64)(packed + begins[entry]);
        shared_lossy = lossy[entry];
      }
    }
  }
  __syncthreads();  // writes of all come after that thread's acquire
  kv_u8* const slot = (kv_u8*)shared_slot;
  if (slot == nullptr) return;
  const kv_u8* const body = (const kv_u8*)shared_body;
  // A lane for each of the warp's blocks, which are neighbours, reads what is said of it.
  const kv_u32 first = blockIdx.x % turns * kBlocksAtOnce + kv_warp() * kBlocksOfWarp;
  Block mine = {0, 0, 1, kPlain, 0};
  Forms mine_forms = {0, 0};
  kv_u32 mine_start = 0;
  if (kv_lane() < kBlocksOfWarp && first + kv_lane() < block_count) {
    mine = read_block(blocks, first + kv_lane());
    mine_forms = read_forms(body + 4 * (kv_u64)block_count, mine);
    mine_start = ((const kv_u32*)body)[first + kv_lane()];
  }
  for (kv_u32 n = 0; n < kBlocksOfWarp && first + n < block_count; n++) {
    const Block block = block_of_lane(mine, n);
    const Forms forms = {__shfl_sync(kWholeWarp, mine_forms.least, n), __shfl_sync(kWholeWarp, mine_forms.width, n)};
    const kv_u8* const payload = body + __shfl_sync(kWholeWarp, mine_start, n);
    const Eight values = shared_lossy != 0 && block.kind != kPlain ? expanded_codes(block, forms, payload)
                                                                   : expanded_planes(block, forms, payload);
    store_eight(block, slot + block.offset, values);
  }
}

// -- Pack -------------------------------------------------------------------------------------------------------------

// What a warp makes of its block; equal in all lanes but for the values. Of FP8 these are codes, one plane of 8 bits.
struct Planes {
  Eight values;
  kv_u64 least;
  kv_u64 width;
  kv_u32 count;
  float scale;
};

// What is said of a block in the body.
struct Said {
  kv_u32 start;
  kv_u32 form;
  kv_u32 item;
  Forms forms;
};

__device__ __forceinline__ kv_u32 bits_for(kv_u32 far) {
  kv_u32 width = 0;
  while (far >> width != 0) width++;
  return width;
}

__device__ __forceinline__ Planes planes_of(const Block& block, const kv_u8* begin) {
  const kv_u32 lanes = lanes_of(block);
  Planes planes = {load_eight(block, begin), 0, 0, block.item, 0.0f};
#pragma unroll
  for (kv_u32 i = 0; i < kPerLane; i++) planes.values.at[i] = turned_left(planes.values.at[i], block.item);
  for (kv_u32 plane = 0; plane < block.item; plane++) {
    kv_u32 least = 255, most = 0;
#pragma unroll
    for (kv_u32 i = 0; i < kPerLane; i++) {
      if (kv_lane() >= lanes || element_of(lanes, i) >= block.elements) continue;
      const kv_u32 value = byte_of(planes.values.at[i], plane);
      least = min(least, value);
      most = max(most, value);
    }
    least = kv_warp_min(least);
    most = kv_greatest(most, kWarpLanes);
    planes.least |= (kv_u64)least << (8 * plane);
    planes.width |= (kv_u64)bits_for(most - least) << (8 * plane);
  }
  return planes;
}

__device__ __forceinline__ Planes codes_of(const Block& block, const kv_u8* begin) {
  Planes planes = {load_eight(block, begin), 0, 8, 1, 0.0f};
  kv_eight numbers;  // those behind the last one are 0, and so are their codes
#pragma unroll
  for (kv_u32 i = 0; i < kPerLane; i++) numbers.at[i] = number_of(block.kind, planes.values.at[i]);
  planes.scale = kv_scale(kv_greatest(kv_peak(numbers), kWarpLanes), kLeastPeak);
  const kv_u64 codes = kv_quantised(numbers, planes.scale);
#pragma unroll
  for (kv_u32 i = 0; i < kPerLane; i++) planes.values.at[i] = byte_of(codes, i);
  return planes;
}

// This lane's elements above the least, `width` bits each.
__device__ __forceinline__ kv_u64 bits_of(const Block& block, const Planes& planes, kv_u32 plane) {
  const kv_u32 lanes = lanes_of(block), least = byte_of(planes.least, plane), width = byte_of(planes.width, plane);
  kv_u64 bits = 0;
#pragma unroll
  for (kv_u32 i = 0; i < kPerLane; i++)
    if (kv_lane() < lanes && element_of(lanes, i) < block.elements)
      bits |= (kv_u64)(byte_of(planes.values.at[i], plane) - least) << (i * width);
  return bits;
}

// With two blocks on a multiprocessor at least there are registers enough, and none is spilled.
extern "C" __global__ void __launch_bounds__(kThreads, 2) kv_pack(
    const kv_u8* arena,    // [slots, stride]
    kv_u64 stride,
    kv_u32 slots,
    const kv_i32* ids,     // [most] slots to read
    const kv_i64* live,    // entries in use, or null: `most`
    kv_u32 most,
    const kv_u32* blocks,  // [block_count, 4]
    kv_u32 block_count,
    kv_u32 forms_bytes,
    kv_u32 lossy,
    kv_u8* out,            // [most, out_stride] a body each
    kv_u64 out_stride,
    kv_u32* sizes,         // [most] bytes of each body
    kv_u32 machine,
    kv_u32 side,
    kv_u64* words,
    const kv_u32* expected,
    kv_u8* refusals) {
  __shared__ kv_u64 shared_slot;
  __shared__ kv_u32 all_bytes[kWarps];
  __shared__ Said said[kWarps];
  const KvCheck check = {machine, side, words, expected, refusals, nullptr};
  const kv_u32 entry = blockIdx.x;
  kv_i32 id = 0;  // of the slot; known to one thread
  if (threadIdx.x == 0) {
    shared_slot = 0;
    if (entry < kv_in_use(live, most)) {
      id = ids[entry];
      if (kv_look(check, entry, id, slots) == kv_refusal::kApplied) shared_slot = (kv_u64)(arena + (kv_u64)id * stride);
    }
  }
  __syncthreads();  // reads of all come after that thread's acquire
  const kv_u8* const slot = (const kv_u8*)shared_slot;
  if (slot == nullptr) return;
  kv_u8* const body = out + (kv_u64)entry * out_stride;
  const kv_u32 directory = 4 * block_count + forms_bytes;
  kv_u32 end = padded(directory);
  if (threadIdx.x < end - directory) body[directory + threadIdx.x] = 0;
  for (kv_u32 first = 0; first < block_count; first += kWarps) {
    const kv_u32 number = first + kv_warp();
    const bool has_block = number < block_count;
    Block block = {0, 0, 1, kPlain, 0};
    Planes planes = {{{0, 0, 0, 0, 0, 0, 0, 0}}, 0, 0, 0, 0.0f};
    if (has_block) {
      block = read_block(blocks, number);
      const kv_u8* const begin = slot + block.offset;
      planes = lossy != 0 && block.kind != kPlain ? codes_of(block, begin) : planes_of(block, begin);
    }
    const kv_u32 lanes = lanes_of(block);
    kv_u32 width = 0;
    for (kv_u32 plane = 0; plane < planes.count; plane++) width += byte_of(planes.width, plane);
    if (kv_lane() == 0) all_bytes[kv_warp()] = padded(width * lanes);
    __syncthreads();  // bytes of all blocks are there, and what was said of those before is read
    kv_u32 start = end;
    for (kv_u32 warp = 0; warp < kWarps; warp++) {
      start += warp < kv_warp() ? all_bytes[warp] : 0;
      end += all_bytes[warp];
    }
    const bool is_fp8 = lossy != 0 && block.kind != kPlain;
    if (kv_lane() == 0) {
      const Forms planes_forms = {planes.least, planes.width};
      said[kv_warp()] = {start, block.form, has_block ? block.item : 0, is_fp8 ? forms_of(planes.scale) : planes_forms};
    }
    kv_u32 at = start;
    for (kv_u32 plane = 0; plane < planes.count; plane++) {
      const kv_u32 bits = byte_of(planes.width, plane);
      write_bits(body + at, lanes, bits, bits_of(block, planes, plane));
      at += bits * lanes;
    }
    if (kv_lane() < start + padded(width * lanes) - at) body[at + kv_lane()] = 0;
    __syncthreads();  // all is said, and bytes of all blocks are read
    // A lane for each block, so that neighbours lie in few sectors.
    if (threadIdx.x < kWarps && said[threadIdx.x].item != 0) {
      const Said& one = said[threadIdx.x];
      ((kv_u32*)body)[first + threadIdx.x] = one.start;
      kv_u16* const forms = (kv_u16*)(body + 4 * (kv_u64)block_count + one.form);
      for (kv_u32 plane = 0; plane < one.item; plane++)
        forms[plane] = (kv_u16)(byte_of(one.forms.least, plane) | byte_of(one.forms.width, plane) << 8);
    }
  }
  __syncthreads();  // reads of all come before that thread's second look
  if (threadIdx.x != 0) return;
  if (kv_look_again(check, entry, id) == kv_refusal::kApplied) sizes[entry] = end;
}
