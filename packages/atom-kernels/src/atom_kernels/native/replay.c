/* Calls of other kernels, one after the other: between two of them no interpreter has to be asked for.
 *
 * A function takes its whole numbers and pointers in places of their own, and its floating-point numbers in others:
 * registers, and then, for whole numbers, words of the stack. So do x86-64 and aarch64 on Linux. Places behind a
 * function's last argument are never looked at, so one type of call serves all of them. A float lies in the first
 * half of a double.
 */
#include "vector.h"

#define MOST_WHOLE 32
#define MOST_REAL 8

struct call {
    void *function;
    int64_t whole[MOST_WHOLE];
    double real[MOST_REAL];
    int64_t answers;
    int64_t answer;
};

#define FOUR(type) type, type, type, type
#define EIGHT(type) FOUR(type), FOUR(type)
typedef int64_t any_function(EIGHT(int64_t), EIGHT(int64_t), EIGHT(int64_t), EIGHT(int64_t), EIGHT(double));

#define FOUR_OF(array, first) array[first], array[first + 1], array[first + 2], array[first + 3]
#define EIGHT_OF(array, first) FOUR_OF(array, first), FOUR_OF(array, first + 4)

/* How many of them were made: all, or those before one that did not answer as it was to. */
int64_t replay_calls(const struct call *calls, int64_t count) {
    for (int64_t index = 0; index < count; index++) {
        const struct call *one = &calls[index];
        const int64_t *whole = one->whole;
        const double *real = one->real;
        int64_t answer = ((any_function *)one->function)(
            EIGHT_OF(whole, 0), EIGHT_OF(whole, 8), EIGHT_OF(whole, 16), EIGHT_OF(whole, 24), EIGHT_OF(real, 0));
        if (one->answers && answer != one->answer)
            return index;
    }
    return count;
}
