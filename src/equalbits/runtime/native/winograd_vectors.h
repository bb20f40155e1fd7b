/* Winograd's algorithm in vectors: input transform and output transform. See winograd.c.
 *
 * For the input, the polynomial of each point is the product of x - q over the other points q. Written with r = x² - 4
 * and s = x² - 1, most of it is shared between points. */
INLINE vec v_plus(vec a, float times, vec b) { return v_fma(v_set(times), b, a); }

/* Transform the columns of a line, every fourth in a row of its own, to the points, at a distance of `apart`. Quads are
 * whole vectors; the last one of a row reads past its end, and is not used. */
static void winograd_in(int64_t taps, const float *columns, int64_t quads, float *to, int64_t apart) {
    const int four = taps == 4; /* then ½ is a point too */
    for (int64_t quad = 0; quad < quads; quad += LANES) {
        vec d[EB_POINTS], r[EB_POINTS], s[EB_POINTS];
        EB_UNROLL(7) for (int j = 0; j < EB_POINTS; j++) {
            d[j] = v_load(columns + j % 4 * quads + quad + j / 4);
            r[j] = j < 2 ? d[j] : v_plus(d[j], -4, d[j - 2]);
            s[j] = j < 2 ? d[j] : v_plus(d[j], -1, d[j - 2]);
        }
        const vec even = v_plus(r[4], -1, r[2]), odd = v_plus(r[5], -1, r[3]), last = v_plus(r[6], -1, r[4]);
        const vec r0 = four ? v_plus(r[4], -0.5f, r[3]) : r[3], r1 = four ? v_plus(r[5], -0.5f, r[4]) : r[4];
        const vec s0 = four ? v_plus(s[4], -0.5f, s[3]) : s[3], s1 = four ? v_plus(s[5], -0.5f, s[4]) : s[4];
        float *at = to + quad;
        v_store(at, four ? v_plus(odd, -0.5f, even) : even);
        v_store(at + apart, v_add(r1, r0));
        v_store(at + 2 * apart, v_plus(r1, -1, r0));
        v_store(at + 3 * apart, v_plus(s1, 2, s0));
        v_store(at + 4 * apart, v_plus(s1, -2, s0));
        v_store(at + 5 * apart, odd);
        v_store(at + 6 * apart, four ? v_plus(last, -0.5f, odd) : odd);
    }
}

/* Transform taps + 1 consecutive lines to the points of rows. */
static void winograd_down(int64_t taps, const float *const *lines, int64_t numbers, float *to, int64_t apart) {
    const int four = taps == 4;
    for (int64_t i = 0; i < numbers; i += LANES, to += LANES) {
        const vec d0 = v_load(lines[0] + i), d1 = v_load(lines[1] + i), d2 = v_load(lines[2] + i);
        const vec d3 = v_load(lines[3] + i), d4 = four ? v_load(lines[4] + i) : d3;
        const vec even = v_plus(d2, -1, d0), odd = v_plus(d3, -1, d1), last = v_plus(d4, -1, d2);
        const vec low = four ? v_plus(d2, -0.5f, d1) : d1, high = four ? v_plus(d3, -0.5f, d2) : d2;
        v_store(to, four ? v_plus(odd, -0.5f, even) : even);
        v_store(to + apart, v_add(high, low));
        v_store(to + 2 * apart, v_plus(high, -1, low));
        v_store(to + 3 * apart, odd);
        v_store(to + 4 * apart, four ? v_plus(last, -0.5f, odd) : odd);
    }
}

/* Transform products at the points of rows to two rows. */
static void winograd_up(const float *products, int64_t numbers, float *first, float *second) {
    for (int64_t i = 0; i < numbers; i += LANES, products += LANES) {
        const vec m1 = v_load(products + numbers), m2 = v_load(products + 2 * numbers);
        const vec m3 = v_load(products + 3 * numbers);
        v_store(first + i, v_add(v_add(v_load(products), m3), v_add(m1, m2)));
        v_store(second + i, v_add(v_plus(v_load(products + 4 * numbers), 0.5f, m3), v_plus(m1, -1, m2)));
    }
}

/* Transform products at the points 0, 1, -1, 2, -2, ½ and infinity, (point, quad, filter), to four outputs per quad. */
static void winograd_out(const float *products, int64_t apart, int64_t quads, float *sums) {
    for (int64_t quad = 0; quad < quads; quad++, products += EB_BLOCK, sums += 4 * EB_BLOCK)
        EACH {
            const float *at = products + i * LANES;
            vec m1 = v_load(at + apart), m2 = v_load(at + 2 * apart), m3 = v_load(at + 3 * apart);
            vec m4 = v_load(at + 4 * apart), m5 = v_load(at + 5 * apart);
            vec sum1 = v_add(m1, m2), gap1 = v_plus(m1, -1, m2), sum2 = v_add(m3, m4), gap2 = v_plus(m3, -1, m4);
            float *to = sums + i * LANES;
            v_store(to, v_add(v_add(v_load(at), m5), v_add(sum1, sum2)));
            v_store(to + EB_BLOCK, v_plus(v_plus(gap1, 2, gap2), 0.5f, m5));
            v_store(to + 2 * EB_BLOCK, v_plus(v_plus(sum1, 4, sum2), 0.25f, m5));
            v_store(to + 3 * EB_BLOCK, v_plus(v_plus(v_add(gap1, v_load(at + 6 * apart)), 8, gap2), 0.125f, m5));
        }
}
