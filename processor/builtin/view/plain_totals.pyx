# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, binding=False
"""The totals of one group of plain records: members, and of each argument count, sum, and the nearest values to extremes.

Sums are those of `processor.filter.aggregate.moments`: integers and a number of decimals. Least and greatest values are
those of `processor.filter.aggregate.extremes`.
"""

from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Calloc, PyMem_Free

from processor.builtin.view.plain_nearest cimport Key, add_key, begin_again, is_less, key_of, number_of, remove_key
from processor.builtin.view.plain_texts cimport put_bytes, put_decimal, put_number

from processor.filter.aggregate import extremes

cdef Py_ssize_t KEPT_LEAST = extremes.KEPT_LEAST
cdef Py_ssize_t LOW_SHARE = extremes.LOW_SHARE

cdef enum:
    DECIMALS_MAX = 16  # One more than a canonical number has.

cdef tuple TENS = tuple([10**power for power in range(DECIMALS_MAX + 1)])


cdef class Aggregates:
    """What a part of a group has behind its members, and the limits of memory."""

    def __init__(self, Py_ssize_t arguments, states, Py_ssize_t kept_max, Py_ssize_t room_max):
        """Take the definition.

        Args:
            arguments: their number.
            states: of each value of a part the argument, and `count`, `moments`, `MIN` or `MAX`.
            kept_max: most values that an extreme keeps before it is filled again, at least 2.
            room_max: values of all groups beyond which an extreme that gets a value keeps few.
        """
        cdef Py_ssize_t place
        self.arguments, self.states = arguments, len(states)
        self.kept_max, self.room_max = kept_max, room_max
        if self.arguments > ARGUMENTS_MAX or self.states > STATES_MAX:
            raise ValueError("too many arguments")
        for place in range(self.states):
            self.argument_of[place], kind = states[place]
            self.is_count[place] = kind == "count"
            self.extreme_of[place] = -1
            if kind == "moments":
                self.has_sum[self.argument_of[place]] = True
            elif kind != "count":
                self.extreme_of[place] = self.extremes
                self.extreme_argument[self.extremes] = self.argument_of[place]
                self.is_greatest[self.extremes] = kind == "MAX"
                self.extremes += 1


cdef class Totals:
    """The totals of one group, or the change since they were set aside."""

    def __cinit__(self, Aggregates of):
        cdef Py_ssize_t each
        self.of, self.sums = of, [0] * of.arguments  # All else begins as zeros.
        if of.extremes:
            self.nearest = <Nearest *>PyMem_Calloc(of.extremes, sizeof(Nearest))
            if self.nearest == NULL:
                raise MemoryError
        self.extremes = of.extremes  # Here too, as `of` may be gone before the values are freed.
        for each in range(of.extremes):
            self.nearest[each].kept_max = of.kept_max

    def __dealloc__(self):
        cdef Py_ssize_t each
        for each in range(self.extremes):
            begin_again(&self.nearest[each])
        PyMem_Free(self.nearest)

    cdef void free(self) noexcept:
        """Free the values of the extremes; all others stay."""
        cdef Py_ssize_t each
        for each in range(self.of.extremes):
            self.of.room -= self.nearest[each].room
            begin_again(&self.nearest[each])

    cdef int change(self, Number *numbers, int times, bint has_values) except -1:
        """Add a record, or remove it with `times` -1; its values count for the extremes only with `has_values`."""
        cdef Py_ssize_t place
        self.members += times
        for place in range(self.of.arguments):
            if numbers[place].is_there:
                self.counts[place] += times
                if self.of.has_sum[place]:
                    self.add_sum(place, numbers[place].value * times, numbers[place].decimals)
        return self.change_values(numbers, times) if has_values else 0

    cdef bint replace(self, Number *old, Number *new, bint has_values) except -1:
        """Replace a record by the next one; returns whether the group's part may have changed."""
        cdef bint has_changed = self.is_change or self.is_refilled
        cdef Py_ssize_t place, each
        for place in range(self.of.arguments):
            if is_same(&old[place], &new[place]):
                continue
            if old[place].is_there != new[place].is_there:
                self.counts[place] += new[place].is_there - old[place].is_there
                has_changed = True
            if self.of.has_sum[place]:
                self.replace_sum(place, &old[place], &new[place])
                has_changed = True
        if has_values:
            for each in range(self.of.extremes):
                place = self.of.extreme_argument[each]
                if not is_same(&old[place], &new[place]) and self.replace_value(each, &old[place], &new[place]):
                    has_changed = True
        return has_changed

    cdef int change_values(self, Number *numbers, int times) except -1:
        """Add the values of a record to the extremes, or remove them with `times` -1."""
        cdef Py_ssize_t each
        for each in range(self.of.extremes):
            self.change_value(each, &numbers[self.of.extreme_argument[each]], times)
        return 0

    cdef int begin_refill(self) except -1:
        """Forget the values of all extremes if one has few left, and others were forgotten: they will be read again."""
        cdef Py_ssize_t each
        cdef Nearest *nearest
        for each in range(self.of.extremes):
            nearest = &self.nearest[each]
            if nearest.has_forgotten and nearest.count * LOW_SHARE <= nearest.kept_max:
                self.is_refilled = True
                if nearest.kept_max < self.of.room_max:
                    nearest.kept_max *= 2
        if self.is_refilled:
            self.free()
        return 0

    cdef bint is_incomplete(self) noexcept:
        """Return whether an extreme is not known."""
        cdef Py_ssize_t each
        for each in range(self.of.extremes):
            if self.nearest[each].count == 0 and self.counts[self.of.extreme_argument[each]] != 0:
                return True
        return self.is_refilled

    cdef int settle(self, former) except -1:
        """Add the totals that were set aside to this change, which is one no more; None: there are none."""
        cdef Py_ssize_t place, each
        cdef Number number
        number.is_there = True
        self.is_change = False
        if former is not None:
            self.members += former[0]
            for place, (count, total, decimals) in enumerate(former[1]):
                self.counts[place] += count
                self.add_sum(place, total, decimals)
            for each, (has_forgotten, values) in enumerate(former[2]):
                for number.value, number.decimals in values:
                    self.change_value(each, &number, 1)
                self.nearest[each].has_forgotten |= has_forgotten
        log, self.log = self.log, None
        for each, number.value, number.decimals, times in log or ():
            self.change_value(each, &number, times)
        return 0

    cdef tuple plain(self, Py_ssize_t share):
        """Return the totals as `processor.wire.view_parts` has them, with at most so many values of each extreme."""
        cdef Py_ssize_t place, each, first
        cdef Nearest *nearest
        cdef Number number
        cdef list extremes = [], values
        for each in range(self.of.extremes):
            nearest, values = &self.nearest[each], []
            first = max(0, nearest.count - share)
            for place in range(first, nearest.count):
                number = number_of(nearest.kept[place], self.of.is_greatest[each])
                values.append((number.value, number.decimals))
            extremes.append((bool(nearest.has_forgotten or first > 0), values))
        sums = [(self.counts[place], self.sums[place], self.decimals[place]) for place in range(self.of.arguments)]
        return self.members, sums, extremes

    cdef char *put(self, char *at) except? NULL:
        """Write the members and the values of a part; returns the place behind them, NULL if a sum is no int64."""
        cdef Py_ssize_t state, place
        cdef Nearest *nearest
        cdef Number extreme
        cdef int64_t total
        cdef int is_beyond = 0
        at = put_number(at, self.members)
        for state in range(self.of.states):
            place = self.of.argument_of[state]
            at = put_bytes(at, b",", 1)
            if self.of.is_count[state]:
                at = put_number(at, self.counts[place])
                continue
            if self.of.extreme_of[state] >= 0:
                nearest = &self.nearest[self.of.extreme_of[state]]
                if nearest.count == 0:
                    at = put_bytes(at, b"[0,null,null,null]", 18)
                    continue
                extreme = number_of(nearest.kept[nearest.count - 1], self.of.is_greatest[self.of.extreme_of[state]])
                at = put_decimal(put_bytes(at, b"[1,", 3), &extreme)
                at = put_bytes(at, b",null,null]", 11)
                continue
            total = PyLong_AsLongLongAndOverflow(self.sums[place], &is_beyond)
            if is_beyond:
                return NULL
            at = put_number(put_bytes(at, b"[", 1), self.counts[place])
            at = put_number(put_bytes(at, b",", 1), total)
            at = put_number(put_bytes(at, b",", 1), self.decimals[place])
            at = put_bytes(at, b",0]", 3)
        return at

    cdef int add_sum(self, Py_ssize_t place, object value, int decimals) except -1:
        """Add a number with some decimals to an argument's sum."""
        cdef int missing = self.decimals[place] - decimals
        if missing > 0:
            value = value * TENS[missing]
        elif missing < 0:
            self.sums[place] = self.sums[place] * TENS[-missing]
            self.decimals[place] = decimals
        self.sums[place] = self.sums[place] + value
        return 0

    cdef int replace_sum(self, Py_ssize_t place, Number *old, Number *new) except -1:
        """Remove an argument's number from its sum, and add the next one."""
        cdef int decimals = self.decimals[place]
        if old.is_there and new.is_there and old.decimals == decimals and new.decimals == decimals:
            self.sums[place] = self.sums[place] + (new.value - old.value)
            return 0
        if new.is_there:
            self.add_sum(place, new.value, new.decimals)
        if old.is_there:
            self.add_sum(place, -old.value, old.decimals)
        return 0

    cdef bint replace_value(self, Py_ssize_t each, Number *old, Number *new) except -1:
        """Replace a number by the next one; returns whether the extreme is another one, or unknown."""
        cdef Nearest *nearest = &self.nearest[each]
        cdef Key before, after
        cdef bint had_one = nearest.count > 0
        if had_one:
            before = nearest.kept[nearest.count - 1]
        self.change_value(each, new, 1)
        self.change_value(each, old, -1)
        if not had_one or nearest.count == 0:
            return True
        after = nearest.kept[nearest.count - 1]
        return is_less(&before, &after) or is_less(&after, &before)

    cdef int change_value(self, Py_ssize_t each, Number *number, int times) except -1:
        """Add an argument's number to an extreme, or remove it with `times` -1."""
        cdef Nearest *nearest = &self.nearest[each]
        cdef Aggregates of = self.of
        cdef Py_ssize_t kept_max = nearest.kept_max
        if not number.is_there:
            return 0
        if self.is_change:
            self.log.append((each, number.value, number.decimals, times))
            return 0
        if times < 0:
            remove_key(nearest, key_of(number, of.is_greatest[each]))
            if self.counts[of.extreme_argument[each]] == 0:
                nearest.has_forgotten = False
            return 0
        if of.room > of.room_max and kept_max > KEPT_LEAST:
            kept_max = KEPT_LEAST
        of.room -= nearest.room
        add_key(nearest, key_of(number, of.is_greatest[each]), kept_max)
        of.room += nearest.room
        return 0


cdef inline bint is_same(const Number *one, const Number *other) noexcept nogil:
    """Return whether two arguments are written alike."""
    if not (one.is_there and other.is_there):
        return one.is_there == other.is_there
    return one.value == other.value and one.decimals == other.decimals
