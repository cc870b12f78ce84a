/* Check, then use, written by hand for SPIN: as in spec/protocols/toctou.yaml, for two or three slots and readers.
 * spin -DSLOTS=3 -DREADERS=2 -o2 -a toctou.pml
 * Every variable is two bits wide. Blocks are 0 free, 1 uncompressed, 2 compressing, 3 compressed; the compressor has no
 * variable, since it is at work where a block says so. Readers are at 0 match, 1 pin, 2 read, 3 done.
 */
#define VARIABLES(kind, n, a, b, c) unsigned kind##n##_##a : 2; unsigned kind##n##_##b : 2; unsigned kind##n##_##c : 2;
#define state(b) block##b##_state
#define pins(b) block##b##_pins
#define epoch(b) block##b##_epoch
#define at(r) reader##r##_at
#define slot(r) reader##r##_slot
#define seen(r) reader##r##_seen
#define fits(r, b) (slot(r) == b && (state(b) & 1) && epoch(b) == seen(r))

#define FORGET(r) at(r) = 0; slot(r) = 0; seen(r) = 0
#define READ_OF(r, b) \
  :: d_step { !at(r) && (state(b) & 1) -> at(r) = 1; slot(r) = b; seen(r) = epoch(b) } \
  :: d_step { at(r) == 1 && fits(r, b) -> at(r) = 2; pins(b) = pins(b) + 1 } \
  :: d_step { at(r) == 3 && slot(r) == b -> pins(b) = pins(b) - 1; FORGET(r) }
#define READ(r) \
  READS_OF(r) \
  :: d_step { at(r) == 1 && !FITS(r) -> FORGET(r) } \
  :: d_step { at(r) == 2 -> at(r) = 3 }
#define BLOCK(b) \
  :: d_step { (state(b) & 1) && !pins(b) -> state(b) = 0 } \
  :: d_step { !state(b) -> state(b) = 1; epoch(b) = (epoch(b) + 1) & 3 } \
  :: d_step { state(b) == 1 && !pins(b) && IDLE -> state(b) = 2 } \
  :: d_step { state(b) == 2 -> state(b) = 3 }
#define BAD(r) (at(r) == 3 && !FITS(r))

VARIABLES(block, 0, state, pins, epoch)
VARIABLES(block, 1, state, pins, epoch)
VARIABLES(reader, 0, at, slot, seen)
VARIABLES(reader, 1, at, slot, seen)
#if SLOTS == 2
#define IDLE (state(0) != 2 && state(1) != 2)
#define FITS(r) (fits(r, 0) || fits(r, 1))
#define READS_OF(r) READ_OF(r, 0) READ_OF(r, 1)
#define BLOCKS BLOCK(0) BLOCK(1)
#else
VARIABLES(block, 2, state, pins, epoch)
#define IDLE (state(0) != 2 && state(1) != 2 && state(2) != 2)
#define FITS(r) (fits(r, 0) || fits(r, 1) || fits(r, 2))
#define READS_OF(r) READ_OF(r, 0) READ_OF(r, 1) READ_OF(r, 2)
#define BLOCKS BLOCK(0) BLOCK(1) BLOCK(2)
#endif
#if READERS == 2
#define READS READ(0) READ(1)
#define WRONG (BAD(0) || BAD(1))
#else
VARIABLES(reader, 2, at, slot, seen)
#define READS READ(0) READ(1) READ(2)
#define WRONG (BAD(0) || BAD(1) || BAD(2))
#endif

active proctype all() {
end: do
  :: WRONG -> assert(false)
  READS
  BLOCKS
  od
}
