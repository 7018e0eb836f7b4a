# cython: language_level=3
"""The values nearest to the least or the greatest of some plain numbers, sorted: `filter.aggregate.extremes`, compiled.

A key is a number in the order of that module: by its value, then 1.0 before 1. It is negated for the least, so that the
extreme is the greatest key always.
"""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int64_t
from libc.string cimport memmove

from processor.builtin.delta_merge.json_text cimport grown
from processor.builtin.view.plain_texts cimport Number

cdef enum:
    FRACTION_DIGITS = 15  # The most decimals of a canonical number.
    ROOM_MIN = 4

cdef struct Key:
    int64_t high  # The number, rounded down.
    int64_t low   # What is left, times 2 * 10 ** FRACTION_DIGITS, and 1 for an integer.

cdef struct Nearest:
    Key *kept           # ascending: the last one is the extreme
    Py_ssize_t count
    Py_ssize_t room
    Py_ssize_t kept_max
    bint has_forgotten  # values beyond the first that is kept


cdef inline int64_t power_of_ten(int exponent) noexcept nogil:
    """Return a power of ten, up to 18."""
    cdef int64_t power = 1
    while exponent > 0:
        power *= 10
        exponent -= 1
    return power


@cython.cdivision(True)
cdef inline Key key_of(const Number *number, bint is_greatest) noexcept nogil:
    """Return the key of a number that is there."""
    cdef Key key
    cdef int64_t scale = power_of_ten(number.decimals), left
    key.high = number.value // scale  # Towards zero, as C divides.
    left = number.value - key.high * scale
    if left < 0:
        key.high -= 1
        left += scale
    key.low = 2 * left * power_of_ten(FRACTION_DIGITS - number.decimals) + (number.decimals == 0)
    if not is_greatest:
        key.high, key.low = -key.high, -key.low
    return key


@cython.cdivision(True)
cdef inline Number number_of(Key key, bint is_greatest) noexcept nogil:
    """Return the number with a key, as its record has it."""
    cdef Number number
    cdef int64_t left
    if not is_greatest:
        key.high, key.low = -key.high, -key.low
    number.is_there = True
    number.value, number.decimals = key.high, 0
    if key.low & 1:
        return number
    left, number.decimals = key.low // 2, FRACTION_DIGITS
    while number.decimals > 1 and left % 10 == 0:
        left //= 10
        number.decimals -= 1
    number.value = key.high * power_of_ten(number.decimals) + left
    return number


cdef inline bint is_less(const Key *one, const Key *other) noexcept nogil:
    """Return whether a key is less than another one."""
    return one.high < other.high or (one.high == other.high and one.low < other.low)


cdef inline Py_ssize_t place_of(const Nearest *nearest, const Key *key) noexcept nogil:
    """Return the place of the first key that is not less."""
    cdef Py_ssize_t begin = 0, end = nearest.count, middle
    while begin < end:
        middle = (begin + end) >> 1
        if is_less(&nearest.kept[middle], key):
            begin = middle + 1
        else:
            end = middle
    return begin


cdef inline int add_key(Nearest *nearest, Key key, Py_ssize_t kept_max) except -1:
    """Add a key; of more than `kept_max` the lesser half is forgotten."""
    cdef Py_ssize_t place, dropped
    if nearest.has_forgotten and (nearest.count == 0 or is_less(&key, &nearest.kept[0])):
        return 0  # Keys beyond the least kept one are not known, so a new one there is not known either.
    place = place_of(nearest, &key)
    if nearest.count == nearest.room:
        give_room(nearest, nearest.room + (nearest.room >> 1) if nearest.room > ROOM_MIN else nearest.room + ROOM_MIN)
    memmove(nearest.kept + place + 1, nearest.kept + place, (nearest.count - place) * sizeof(Key))
    nearest.kept[place] = key
    nearest.count += 1
    if nearest.count > kept_max:
        nearest.has_forgotten = True
        dropped = nearest.count - (kept_max >> 1)
        nearest.count -= dropped
        memmove(nearest.kept, nearest.kept + dropped, nearest.count * sizeof(Key))
        give_room(nearest, nearest.count)
    return 0


cdef inline void remove_key(Nearest *nearest, Key key) noexcept nogil:
    """Remove a key that was added."""
    cdef Py_ssize_t place = place_of(nearest, &key)
    if place < nearest.count and not is_less(&key, &nearest.kept[place]):
        nearest.count -= 1
        memmove(nearest.kept + place, nearest.kept + place + 1, (nearest.count - place) * sizeof(Key))


cdef inline int give_room(Nearest *nearest, Py_ssize_t room) except -1:
    """Have memory for so many keys."""
    nearest.kept = <Key *>grown(nearest.kept, room * sizeof(Key))
    nearest.room = room
    return 0


cdef inline void begin_again(Nearest *nearest) noexcept:
    """Forget all keys, and that there were some."""
    PyMem_Free(nearest.kept)
    nearest.kept = NULL
    nearest.count = nearest.room = 0
    nearest.has_forgotten = False
