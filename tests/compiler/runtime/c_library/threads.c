/* Several threads run one model at once, each with a workspace and outputs of its own:

       threads RUNS INPUT... OUTPUT...

   INPUT are raw files. All threads and runs must give the same bytes, which go to the OUTPUT files.
   -DMODEL=name -DHEADER="name.h" -DINPUTS=... -DOUTPUTS=..., and the ports' sizes in bytes. */
#include HEADER

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN(a, b) a##b
#define NAMED(model, what) JOIN(model, what)
#define RUN NAMED(MODEL, _run)
#define WORKSPACE_BYTES NAMED(MODEL, _workspace_bytes)

enum { THREADS = 4 };

static const size_t sizes[] = {SIZES};
static void *inputs[INPUTS];
static void *results[THREADS][OUTPUTS];
static int runs;

static void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (memory == NULL)
        exit(3);
    return memory;
}

static void *work(void *number)
{
    void **mine = results[*(int *)number];
    void *workspace = allocate(WORKSPACE_BYTES());
    void *again[INPUTS + OUTPUTS];
    struct NAMED(MODEL, _io) io;

    for (int run = 0; run < runs; run++) {
        for (int i = 0; i < INPUTS; i++)
            again[i] = inputs[i];
        for (int i = 0; i < OUTPUTS; i++) {
            again[INPUTS + i] = run == 0 ? mine[i] : allocate(sizes[INPUTS + i]);
            memset(again[INPUTS + i], 0xff, sizes[INPUTS + i]);
        }
        memcpy(&io, again, sizeof io); /* the struct is nothing but these pointers */
        if (RUN(&io, workspace) != 0)
            exit(4);
        for (int i = 0; i < OUTPUTS && run > 0; i++) {
            if (memcmp(again[INPUTS + i], mine[i], sizes[INPUTS + i]) != 0)
                exit(5);
            free(again[INPUTS + i]);
        }
    }
    free(workspace);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];

    if (argc != 2 + INPUTS + OUTPUTS)
        return 2;
    runs = atoi(argv[1]);
    for (int i = 0; i < INPUTS; i++) {
        FILE *file = fopen(argv[2 + i], "rb");

        inputs[i] = allocate(sizes[i]);
        if (file == NULL || fread(inputs[i], 1, sizes[i], file) != sizes[i])
            return 2;
        fclose(file);
    }
    for (int t = 0; t < THREADS; t++) {
        numbers[t] = t;
        for (int i = 0; i < OUTPUTS; i++)
            results[t][i] = allocate(sizes[INPUTS + i]);
        if (pthread_create(&threads[t], NULL, work, &numbers[t]) != 0)
            return 3;
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    for (int i = 0; i < OUTPUTS; i++) {
        FILE *file = fopen(argv[2 + INPUTS + i], "wb");

        for (int t = 1; t < THREADS; t++)
            if (memcmp(results[0][i], results[t][i], sizes[INPUTS + i]) != 0)
                return 6;
        if (file == NULL || fwrite(results[0][i], 1, sizes[INPUTS + i], file) != sizes[INPUTS + i])
            return 2;
        fclose(file);
    }
    return 0;
}
