/* Hides every instruction set behind AVX2 from one program, so that engines with no switch of their own can be compared
 * on equal terms: the processor is told to trap the instruction that asks what it can do, and the answer is edited.
 *
 *     gcc -O2 -shared -fPIC -o only_avx2.so benchmarks/only_avx2.c && LD_PRELOAD=./only_avx2.so python ...
 *
 * Linux on x86-64, where /proc/cpuinfo shows cpuid_fault; elsewhere for engines copied by only_avx2.py, whose own
 * instructions trap. Programs that read /proc/cpuinfo instead are not deceived. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };

#define BIT(n) (1u << (n))
/* Leaf 7. EBX: AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL. ECX: VBMI, VBMI2, GFNI, VAES, VPCLMULQDQ, VNNI, BITALG, VPOPCNTDQ.
 * EDX: 4VNNIW, 4FMAPS, VP2INTERSECT, AMX and FP16. */
static const unsigned hidden_b = BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31);
static const unsigned hidden_c = BIT(1) | BIT(6) | BIT(8) | BIT(9) | BIT(10) | BIT(11) | BIT(12) | BIT(14);
static const unsigned hidden_d = BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25);

static struct sigaction before[2]; /* of SIGSEGV, and of SIGILL */
static int faults;                 /* whether the processor traps the instruction */

static int is_question(const unsigned char *at, int number) {
    return at[0] == 0x0f && at[1] == (number == SIGILL ? 0x04 : 0xa2); /* 0f 04 is what only_avx2.py writes */
}

static void answer(int number, siginfo_t *info, void *given) {
    greg_t *reg = ((ucontext_t *)given)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)reg[REG_RIP];
    (void)info;
    if (!is_question(at, number)) { /* a fault of the program itself: let it happen again without this handler */
        sigaction(number, &before[number == SIGILL], NULL);
        return;
    }
    unsigned leaf = (unsigned)reg[REG_RAX], part = (unsigned)reg[REG_RCX], a, b, c, d;
    if (faults) syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(part));
    if (faults) syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    if (leaf == 7 && part == 0) b &= ~hidden_b, c &= ~hidden_c, d &= ~hidden_d;
    if (leaf == 7 && part == 1) a = b = c = d = 0; /* AVX-VNNI and its kin */
    if (leaf == 13 && part == 0) a &= 7;           /* the state of x87, SSE and AVX */
    reg[REG_RAX] = a, reg[REG_RBX] = b, reg[REG_RCX] = c, reg[REG_RDX] = d;
    reg[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
    struct sigaction action;
    unsetenv("LD_PRELOAD"); /* programs that this one starts, such as a compiler, are left alone */
    memset(&action, 0, sizeof action);
    action.sa_sigaction = answer;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGILL, &action, &before[1]);
    faults = !syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    if (!faults) fprintf(stderr, "only_avx2: of this program, only copies made by only_avx2.py are limited\n");
}
