/*
 * A plugin of QEMU's that counts the instructions each processor of an x86-64 guest executes in user space and in the kernel: two u64 for
 * each, 64 bytes from one processor to the next, in the shared file of its argument counts=PATH.
 *
 * What it needs of qemu-plugin.h is declared here: Debian does not ship that header. VERSION is the interface's, set by the compiler's
 * command line.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
typedef void (*at_translation)(qemu_plugin_id_t id, struct qemu_plugin_tb *block);
typedef void (*at_execution)(unsigned int processor, void *data);
enum { NO_REGISTERS = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, at_translation call);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *block, at_execution call, int registers, void *data);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *block);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = VERSION;

enum { PROCESSORS = 64, STRIDE = 8 };
static volatile uint64_t *counts;

static void executed_by_user(unsigned int processor, void *instructions)
{
    counts[processor % PROCESSORS * STRIDE] += (uintptr_t)instructions;
}

static void executed_by_kernel(unsigned int processor, void *instructions)
{
    counts[processor % PROCESSORS * STRIDE + 1] += (uintptr_t)instructions;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    int is_user = qemu_plugin_tb_vaddr(block) >> 63 == 0;
    uintptr_t instructions = qemu_plugin_tb_n_insns(block);

    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, is_user ? executed_by_user : executed_by_kernel, NO_REGISTERS, (void *)instructions);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
    const size_t bytes = PROCESSORS * STRIDE * sizeof(uint64_t);
    int file;

    (void)info;
    if (argc != 1 || strncmp(argv[0], "counts=", 7) != 0) {
        fprintf(stderr, "count: one argument is needed: counts=PATH\n");
        return -1;
    }
    file = open(argv[0] + 7, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0 || ftruncate(file, bytes) != 0) {
        perror(argv[0] + 7);
        return -1;
    }
    counts = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counts == MAP_FAILED) {
        perror(argv[0] + 7);
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
