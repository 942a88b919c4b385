/* Two models in one program, linked in one way or the other: what first_run and second_run negate
   is printed. Both have the same kernel, so the same symbols inside. */
#include "first.h"
#include "second.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    const float x[] = {1, 2, 3};
    float y[3], z[3];
    struct first_io first = {x, y};
    struct second_io second = {y, z};
    void *workspace = aligned_alloc(64, 1 << 16);

    if (first_workspace_bytes() > 1 << 16 || second_workspace_bytes() > 1 << 16)
        return 2;
    if (first_run(&first, workspace) != FIRST_OK || second_run(&second, workspace) != SECOND_OK)
        return 1;
    printf("%g %g %g, %g %g %g\n", (double)y[0], (double)y[1], (double)y[2], (double)z[0],
           (double)z[1], (double)z[2]);
    free(workspace);
    return 0;
}
