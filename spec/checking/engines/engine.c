// Breadth-first search over packed states. What is particular to a system is generated: "system.h" defines
//
//   WORDS, COMMANDS, CLAIMS      words of a state; how many commands and claims there are
//   BATCH, AFTER_MAX             states expanded at once (256 at most), and the most successors that they can have
//   DERIVED_BITS, CHECKED        lowest bits that a perfect index leaves out, and whether each successor must be asked
//                                if they follow from the rest
//   HASH_FACTOR                  odd number that the hash multiplies by
//   ALL_MOVE                     whether every command is sure to lead to another state
//   SYMMETRIC                    whether canonical(s) puts a state in the place of all that are alike
//   number                       unsigned type of a state's number in the queue
//   place_of, expand, follows, first_claim, quiet_claim
//
// The caller (engine_c.py) owns all memory, and calls advance() until it says that the search is over.
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define NONE UINT64_MAX
#define SEGMENT 256  // places in the queue that a thread takes at once
#define BLOCK 1024   // states judged at once
#define AHEAD 32     // successors between touching their place in the index and looking there
#define LATELY 65536 // entries in each thread's cache of the successors that it met last

// The first row in [from, to) with BAD, which reads the row s, or NONE.
#define FIRST_WHERE(rows, from, to, BAD)                                                   \
    for (uint64_t block = (from); block < (to); block += BLOCK) {                          \
        const uint64_t end = block + BLOCK < (to) ? block + BLOCK : (to);                  \
        int any = 0;                                                                       \
        for (uint64_t row = block; row < end; row++) {                                     \
            const uint64_t *s = (rows) + row * WORDS;                                      \
            any |= (BAD);                                                                  \
        }                                                                                  \
        if (any)                                                                           \
            for (uint64_t row = block; row < end; row++) {                                 \
                const uint64_t *s = (rows) + row * WORDS;                                  \
                if (BAD) return row;                                                       \
            }                                                                              \
    }                                                                                      \
    return NONE;

#include "system.h"

enum { GO_ON = 0, DONE = 1, AT_CAP = 2, MISMATCH = 3, DECIDED = 4 };

// Shared with engine_c.py, field by field.
struct search {
    uint64_t *rows;     // [room][WORDS] states in the order found
    number *parents;    // [room]
    void *index;        // bits: [bits / 64] words, a bit a state; else table: [places] numbers, counted from 1
    uint64_t places;    // of the table, a power of two; 0: the index is bits
    uint64_t cap;       // no state is expanded while there are more states than these
    uint64_t head;      // the first state that is not expanded
    uint64_t tail;      // states found
    uint64_t level_end; // states of the levels so far
    uint64_t depth;
    uint64_t *taken;    // [COMMANDS]
    uint64_t *met;      // [CLAIMS] the first state that decides each claim, or NONE
    uint8_t *stops;     // [CLAIMS] whether the search ends when the claim is decided
    uint8_t *buffers;   // [threads][buffer_bytes()], zeros at first
    uint64_t threads;
};

struct buffer {
    uint64_t after[(AFTER_MAX + 1) * WORDS];
    uint64_t place[AFTER_MAX + 1];
    uint16_t origin[AFTER_MAX + 1];
    uint8_t moved[BATCH];
    uint64_t taken[COMMANDS + 1];
    uint64_t met[CLAIMS + 1];
#if SYMMETRIC
    uint64_t lately[LATELY * WORDS];  // as they were before canonical(); zeros are the first state, which is always met
#endif
};

struct worker {
    struct search *search;
    struct buffer *buffer;
    uint64_t *claimed;    // the next state to expand, shared by the threads
    uint64_t *reserved;   // the end of the queue, shared by the threads
    uint64_t to;          // where to stop
    uint64_t next, end;   // places taken in the queue and not used yet
    uint64_t unjudged;    // the first of those used that the claims were not asked about
    int *mismatch;
    pthread_t thread;
};

uint64_t buffer_bytes(void) { return sizeof(struct buffer); }
uint64_t slack(uint64_t threads) { return threads * (AFTER_MAX + 2 * SEGMENT); }
uint64_t number_bytes(void) { return sizeof(number); }

// Large pages where the system has them: the index is read all over.
void advise(void *memory, uint64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096, first = ((uintptr_t)memory + page - 1) & ~(page - 1), last = (uintptr_t)memory + bytes;
    if (last > first) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)memory; (void)bytes;
#endif
}

static inline uint64_t hashed(const uint64_t *s, uint64_t places) {
    uint64_t mixed = s[0] * HASH_FACTOR;
    for (int word = 1; word < WORDS; word++) mixed = (mixed ^ s[word]) * HASH_FACTOR;
    mixed = (mixed ^ mixed >> 32) * HASH_FACTOR;
    return (mixed ^ mixed >> 32) & (places - 1);
}

static inline int same(const uint64_t *s, const uint64_t *t) {
    uint64_t differs = 0;
    for (int word = 0; word < WORDS; word++) differs |= s[word] ^ t[word];
    return !differs;
}

static void judge(struct worker *w) {
    const struct search *search = w->search;
    for (int claim = 0; claim < CLAIMS; claim++)
        if (search->met[claim] == NONE && w->buffer->met[claim] == NONE)
            w->buffer->met[claim] = first_claim(claim, search->rows, w->unjudged, w->next);
    w->unjudged = w->next;
}

// Where the next new state goes.
static inline uint64_t fresh_place(struct worker *w, const int shared) {
    if (shared && w->next == w->end) {
        judge(w);
        w->next = w->unjudged = __atomic_fetch_add(w->reserved, SEGMENT, __ATOMIC_RELAXED);
        w->end = w->next + SEGMENT;
    }
    return w->next;
}

static inline void write_row(struct search *search, uint64_t place, const uint64_t *s, uint64_t parent) {
    for (int word = 0; word < WORDS; word++) search->rows[place * WORDS + word] = s[word];
    search->parents[place] = (number)parent;
}

static inline void into_bits(struct worker *w, int count, uint64_t first, const int shared) {
    struct search *search = w->search;
    struct buffer *b = w->buffer;
    uint64_t *bits = search->index;
    for (int k = 0; k < count; k++) b->place[k] = place_of(b->after[k]);
    for (int k = 0; k < count && k < AHEAD; k++) __builtin_prefetch(bits + (b->place[k] >> 6), 1);
    for (int k = 0; k < count; k++) {
        if (k + AHEAD < count) __builtin_prefetch(bits + (b->place[k + AHEAD] >> 6), 1);
        const uint64_t bit = UINT64_C(1) << (b->place[k] & 63);
        uint64_t *word = bits + (b->place[k] >> 6);
        if (shared) {
            if (__atomic_load_n(word, __ATOMIC_RELAXED) & bit) continue;
            if (__atomic_fetch_or(word, bit, __ATOMIC_RELAXED) & bit) continue;
        } else {
            if (*word & bit) continue;
            *word |= bit;
        }
        write_row(search, fresh_place(w, shared), b->after + k * WORDS, first + b->origin[k]);
        w->next++;
    }
}

static inline void into_table(struct worker *w, int count, uint64_t first, const int shared) {
    struct search *search = w->search;
    struct buffer *b = w->buffer;
    number *table = search->index;
    const uint64_t last = search->places - 1;
    for (int k = 0; k < count; k++) b->place[k] = hashed(b->after + k * WORDS, search->places);
    for (int k = 0; k < count && k < 2 * AHEAD; k++) __builtin_prefetch(table + b->place[k], 1);
    for (int k = 0; k < count; k++) {
        if (k + 2 * AHEAD < count) __builtin_prefetch(table + b->place[k + 2 * AHEAD], 1);
        if (k + AHEAD < count) {
            const number there = __atomic_load_n(table + b->place[k + AHEAD], __ATOMIC_RELAXED);
            __builtin_prefetch(search->rows + (there ? there - 1 : 0) * (uint64_t)WORDS);
        }
        const uint64_t *s = b->after + k * WORDS;
        uint64_t place = b->place[k];
        for (;; place = (place + 1) & last) {
            number there = __atomic_load_n(table + place, __ATOMIC_ACQUIRE);
            if (!there) {
                const uint64_t at = fresh_place(w, shared);
                write_row(search, at, s, first + b->origin[k]);
                if (!shared) {
                    table[place] = (number)(at + 1);
                    w->next++;
                    break;
                }
                // Pairs with the acquiring load: who sees the number sees the row.
                if (__atomic_compare_exchange_n(table + place, &there, (number)(at + 1), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
                    w->next++;
                    break;
                }
            }
            if (same(search->rows + (there - 1) * (uint64_t)WORDS, s)) break;
        }
    }
}

#if SYMMETRIC
// Leave out successors that are in the index already, as far as is known without their canonical form, which costs more.
static inline int not_met_lately(struct buffer *b, int count) {
    int kept = 0;
    for (int k = 0; k < count; k++) {
        const uint64_t *s = b->after + k * WORDS;
        uint64_t *met = b->lately + hashed(s, LATELY) * WORDS;
        if (same(met, s)) continue;
        for (int word = 0; word < WORDS; word++) met[word] = b->after[kept * WORDS + word] = s[word];
        b->origin[kept++] = b->origin[k];
    }
    return kept;
}
#endif

static inline void expand_batch(struct worker *w, uint64_t first, int count, const int shared) {
    struct search *search = w->search;
    struct buffer *b = w->buffer;
    const uint64_t *rows = search->rows + first * WORDS;
    int found = expand(rows, count, b->after, b->origin, b->taken);

    memset(b->moved, 0, sizeof b->moved);
    for (int k = 0; k < found; k++)
        b->moved[b->origin[k]] |= ALL_MOVE || !same(b->after + k * WORDS, rows + b->origin[k] * WORDS);
    for (int i = 0; i < count; i++)
        if (!b->moved[i])
            for (int claim = 0; claim < CLAIMS; claim++)
                if (first + i < b->met[claim] && quiet_claim(claim, rows + i * WORDS)) b->met[claim] = first + i;

#if SYMMETRIC
    found = not_met_lately(b, found);
    for (int k = 0; k < found; k++) canonical(b->after + k * WORDS);
#endif
    if (search->places) {
        into_table(w, found, first, shared);
        return;
    }
    if (CHECKED) {
        int wrong = 0;
        for (int k = 0; k < found; k++) wrong |= !follows(b->after + k * WORDS);
        if (wrong) {
            __atomic_store_n(w->mismatch, 1, __ATOMIC_RELAXED);
            return;
        }
    }
    into_bits(w, found, first, shared);
}

static inline void work(struct worker *w, const int shared) {
    struct search *search = w->search;
    for (;;) {
        const uint64_t tail = shared ? __atomic_load_n(w->reserved, __ATOMIC_RELAXED) : w->next;
        if (tail > search->cap || __atomic_load_n(w->mismatch, __ATOMIC_RELAXED)) break;
        const uint64_t first = shared ? __atomic_fetch_add(w->claimed, BATCH, __ATOMIC_RELAXED) : *w->claimed;
        if (first >= w->to) break;
        const uint64_t left = w->to - first;
        expand_batch(w, first, (int)(left < BATCH ? left : BATCH), shared);
        if (!shared) {
            *w->claimed = first + (left < BATCH ? left : BATCH);
            if (w->next - w->unjudged >= BLOCK) judge(w);
        }
    }
    judge(w);
}

static void *work_beside(void *w) {
    work(w, 1);
    return 0;
}

// A state was moved in the queue.
static void renumber(struct search *search, uint64_t from, uint64_t to) {
    for (int claim = 0; claim < CLAIMS; claim++)
        if (search->met[claim] == from) search->met[claim] = to;
    if (!search->places) return;
    number *table = search->index;
    uint64_t place = hashed(search->rows + to * WORDS, search->places);
    while (table[place] != (number)(from + 1)) place = (place + 1) & (search->places - 1);
    table[place] = (number)(to + 1);
}

// Fill the places that threads took and did not use with states from the end of the queue.
static void close_gaps(struct search *search, struct worker *workers, uint64_t count) {
    uint64_t unused = 0;
    for (uint64_t i = 0; i < count; i++) unused += workers[i].end - workers[i].next;
    const uint64_t tail = search->tail - unused;
    uint64_t from = search->tail;
    for (uint64_t i = 0; i < count; i++)
        for (uint64_t to = workers[i].next; to < workers[i].end && to < tail; to++) {
            int used;
            do {
                from--;
                used = 1;
                for (uint64_t j = 0; j < count; j++) used &= from < workers[j].next || from >= workers[j].end;
            } while (!used);
            write_row(search, to, search->rows + from * WORDS, search->parents[from]);
            renumber(search, from, to);
        }
    search->tail = tail;
}

// Expand the states in [head, to), or fewer of them.
static int expand_range(struct search *search, uint64_t to) {
    // Threads are not worth their start for few states.
    uint64_t count = search->threads;
    if (to - search->head < 8 * BATCH) count = 1;
    struct worker workers[count];
    uint64_t claimed = search->head, reserved = search->tail;
    int mismatch = 0;
    for (uint64_t i = 0; i < count; i++) {
        struct buffer *buffer = (struct buffer *)(search->buffers + i * sizeof(struct buffer));
        memset(buffer->taken, 0, sizeof buffer->taken);
        for (int claim = 0; claim <= CLAIMS; claim++) buffer->met[claim] = NONE;
        workers[i] = (struct worker){search, buffer, &claimed, &reserved, to, reserved, reserved, reserved, &mismatch, 0};
    }
    if (count == 1) {
        work(workers, 0);
        search->tail = workers[0].next;
    } else {
        uint64_t started = 0;
        for (uint64_t i = 1; i < count; i++, started++)
            if (pthread_create(&workers[i].thread, 0, work_beside, workers + i)) break;
        work_beside(workers);
        for (uint64_t i = 1; i <= started; i++) pthread_join(workers[i].thread, 0);
        search->tail = reserved;
    }
    if (mismatch) return MISMATCH;
    for (uint64_t i = 0; i < count; i++) {
        for (int command = 0; command < COMMANDS; command++) search->taken[command] += workers[i].buffer->taken[command];
        for (int claim = 0; claim < CLAIMS; claim++)
            if (workers[i].buffer->met[claim] < search->met[claim]) search->met[claim] = workers[i].buffer->met[claim];
    }
    if (count > 1) close_gaps(search, workers, count);
    search->head = claimed < to ? claimed : to;
    return GO_ON;
}

// Expand up to `budget` states; says whether to call again.
int advance(struct search *search, uint64_t budget) {
    for (;;) {
        if (search->head == search->level_end) {
            if (search->tail == search->level_end) return DONE;
            search->depth++;
            search->level_end = search->tail;
        }
        for (int claim = 0; claim < CLAIMS; claim++)
            if (search->stops[claim] && search->met[claim] != NONE) return DECIDED;
        if (search->tail > search->cap) return AT_CAP;
        if (!budget) return GO_ON;
        const uint64_t left = search->level_end - search->head, head = search->head;
        const int why = expand_range(search, head + (left < budget ? left : budget));
        if (why != GO_ON) return why;
        budget -= search->head - head;
    }
}

// Put the first state into the queue; the index takes it in with index_some().
void begin(struct search *search) {
    uint64_t first[WORDS] = {0};
#if SYMMETRIC
    canonical(first);
#endif
    write_row(search, 0, first, 0);
    search->tail = search->level_end = 1;
    for (int claim = 0; claim < CLAIMS; claim++) search->met[claim] = first_claim(claim, search->rows, 0, 1);
}

// Take the states [from, to) of the queue into an index; MISMATCH if a perfect one would leave out what does not follow.
int index_some(struct search *search, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; i++) {
        const uint64_t *s = search->rows + i * WORDS;
        if (search->places) {
            number *table = search->index;
            uint64_t place = hashed(s, search->places);
            while (table[place]) place = (place + 1) & (search->places - 1);
            table[place] = (number)(i + 1);
        } else {
            if (DERIVED_BITS && (CHECKED || i == 0) && !follows(s)) return MISMATCH;
            const uint64_t place = place_of(s[0]);
            ((uint64_t *)search->index)[place >> 6] |= UINT64_C(1) << (place & 63);
        }
    }
    return GO_ON;
}
