/* Matrix tiles for a CPU without them: a handler of SIGILL that does what the instruction says.
 *
 * Encodings and meanings are those of Intel's Software Developer's Manual, volume 2: three bytes of
 * VEX (C4, map 0F38, W 0, L 0), an opcode, ModRM and what follows it. What raises #UD on a CPU with
 * tiles - none set up, sizes that do not fit each other - ends the process with SIGILL here, too.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };
enum { NONE, P66, PF3, PF2 };

struct tile {
    unsigned rows, bytes;
    unsigned char data[ROWS][ROW_BYTES];
};

static __thread struct tile tiles[TILES];
static __thread int is_set_up;
static struct sigaction before;
static unsigned long executed; /* products of tiles, by all threads */

static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};

struct instruction {
    unsigned opcode, prefix, reg, rm, vvvv, length;
    int is_memory;
    const unsigned char *start; /* of a memory operand, without the stride of SIB's index */
    int64_t stride;
};

static int64_t value_of(const ucontext_t *context, unsigned number)
{
    return context->uc_mcontext.gregs[REGISTERS[number]];
}

static int32_t displacement(const unsigned char *code, unsigned bytes)
{
    int32_t wide = 0;
    if (bytes == 1)
        return (int8_t)code[0];
    if (bytes == 4)
        memcpy(&wide, code, 4);
    return wide;
}

/* 0 for what is no instruction about tiles. */
static int decode(const ucontext_t *context, struct instruction *out)
{
    const unsigned char *code = (const unsigned char *)context->uc_mcontext.gregs[REG_RIP];
    unsigned modrm, mod, sized, base, x, b;

    if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84) != 0)
        return 0;
    x = !(code[1] & 0x40), b = !(code[1] & 0x20);
    modrm = code[4], mod = modrm >> 6;
    *out = (struct instruction){.opcode = code[3], .prefix = code[2] & 3, .reg = modrm >> 3 & 7,
                                .rm = modrm & 7, .vvvv = ~code[2] >> 3 & 15, .length = 5};
    if (mod == 3)
        return 1;
    out->is_memory = 1;
    base = out->rm | b << 3, sized = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    if (out->rm == 4) {
        unsigned sib = code[5], index = (sib >> 3 & 7) | x << 3;
        out->length++;
        base = (sib & 7) | b << 3;
        if (index != 4)
            out->stride = value_of(context, index) << (sib >> 6);
        if ((sib & 7) == 5 && mod == 0)
            sized = 4, base = 16;
    } else if (out->rm == 5 && mod == 0) {
        sized = 4, base = 17;
    }
    int64_t place = displacement(code + out->length, sized);
    out->length += sized;
    if (base < 16)
        place += value_of(context, base);
    if (base == 17)
        place += (int64_t)code + out->length;
    out->start = (const unsigned char *)place;
    return 1;
}

static int set_up(const unsigned char *shapes)
{
    memset(tiles, 0, sizeof tiles);
    if (shapes[0] != 1)
        return 0;
    for (int i = 1; i < 16; i++)
        if (shapes[i] != 0)
            return 0;
    for (int t = 0; t < TILES; t++) {
        unsigned bytes = shapes[16 + 2 * t] | shapes[17 + 2 * t] << 8, rows = shapes[48 + t];
        if (bytes > ROW_BYTES || rows > ROWS || !bytes != !rows)
            return 0;
        tiles[t].rows = rows, tiles[t].bytes = bytes;
    }
    return is_set_up = 1;
}

static int move(const struct instruction *it, int is_load)
{
    struct tile *tile = &tiles[it->reg];

    if (!is_set_up || !tile->rows)
        return 0;
    for (unsigned row = 0; row < tile->rows; row++) {
        unsigned char *place = (unsigned char *)it->start + (int64_t)row * it->stride;
        if (is_load)
            memcpy(tile->data[row], place, tile->bytes);
        else
            memcpy(place, tile->data[row], tile->bytes);
    }
    return 1;
}

static float from_bf16(const unsigned char *two)
{
    uint32_t bits = (uint32_t)(two[0] | two[1] << 8) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static int32_t byte_of(unsigned char byte, int is_signed)
{
    return is_signed ? (int8_t)byte : byte;
}

static int multiply(const struct instruction *it)
{
    struct tile *c = &tiles[it->reg], *a = &tiles[it->rm], *b = &tiles[it->vvvv & 7];
    int left_signed = it->prefix == PF2 || it->prefix == PF3;
    int right_signed = it->prefix == PF2 || it->prefix == P66;

    if (!is_set_up || c == a || c == b || a == b || !c->rows || !a->rows || !b->rows)
        return 0;
    if (c->rows != a->rows || c->bytes != b->bytes || a->bytes != 4 * b->rows)
        return 0;
    for (unsigned m = 0; m < c->rows; m++)
        for (unsigned k = 0; k < b->rows; k++)
            for (unsigned n = 0; n < c->bytes / 4; n++) {
                const unsigned char *left = &a->data[m][4 * k], *right = &b->data[k][4 * n];
                if (it->opcode == 0x5c) {
                    float sum;
                    memcpy(&sum, &c->data[m][4 * n], 4);
                    sum += from_bf16(left) * from_bf16(right);
                    sum += from_bf16(left + 2) * from_bf16(right + 2);
                    memcpy(&c->data[m][4 * n], &sum, 4);
                } else {
                    uint32_t sum;
                    memcpy(&sum, &c->data[m][4 * n], 4);
                    for (int v = 0; v < 4; v++)
                        sum += (uint32_t)(byte_of(left[v], left_signed) *
                                          byte_of(right[v], right_signed));
                    memcpy(&c->data[m][4 * n], &sum, 4);
                }
            }
    __atomic_fetch_add(&executed, 1, __ATOMIC_RELAXED);
    return 1;
}

static int perform(const struct instruction *it)
{
    if (it->opcode == 0x49 && it->is_memory && it->prefix == NONE)
        return set_up(it->start);
    if (it->opcode == 0x49 && !it->is_memory && it->prefix == NONE) {
        is_set_up = 0;
        memset(tiles, 0, sizeof tiles);
        return 1;
    }
    if (it->opcode == 0x49 && !it->is_memory && it->prefix == PF2) {
        if (!is_set_up || !tiles[it->reg].rows)
            return 0;
        memset(tiles[it->reg].data, 0, sizeof tiles[it->reg].data);
        return 1;
    }
    if (it->opcode == 0x4b && it->is_memory && it->prefix != NONE)
        return move(it, it->prefix != PF3);
    if (!it->is_memory && (it->opcode == 0x5e || (it->opcode == 0x5c && it->prefix == PF3)))
        return multiply(it);
    return 0;
}

static void handle(int number, siginfo_t *info, void *context)
{
    ucontext_t *at = context;
    struct instruction it;

    (void)info;
    if (decode(at, &it) && perform(&it))
        at->uc_mcontext.gregs[REG_RIP] += it.length;
    else
        signal(number, SIG_DFL); /* it is executed again, for good */
}

int emulator_begin(void)
{
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    executed = 0;
    return sigaction(SIGILL, &action, &before);
}

/* How many products of tiles there were. */
unsigned long emulator_end(void)
{
    sigaction(SIGILL, &before, NULL);
    return executed;
}
