/* The walk of K small networks (linear layers, ReLUs) through many rounds: every model alone, all its steps in the cache.

   A layer is one matrix, a row for each output: the weights, then the bias, whose input is always 1, then zeros up to a
   whole number of vectors. So bias, weight and padding take the same steps, and optimizers see one flat array.
   build.py compiles this file once for each set of instructions. */
#include "vectors.h"

#define LAYERS 8
#define TOGETHER 6 /* models that are added to a sum at a time: it is read and written once for all of them */
/* arrays by their part; rows of the first three are models, of the others sites */
enum { MODEL, MOMENT, SQUARE, REFERENCE, SHIFT, PARTS };
enum { CROSS_ENTROPY, SOFT_CROSS_ENTROPY, SIGMOID, HINGE, L1, SQUARES, HUBER, HAZARD, ORDINAL };

/* As fedsmall.training.kernel fills it in; null where there is none. */
struct walk {
    int32_t layers, loss, targets, adam, rounds, models, parts, steps, most, stride;
    int32_t width[LAYERS + 1], relu[LAYERS];
    float *array[PARTS][LAYERS][2]; /* (models or sites, outputs, inputs) and (models or sites, outputs) */
    int64_t *count;                 /* (models,): Adam's steps */
    const float *x, *y, *share;     /* (samples, stride), the input 1 of biases among them; (samples, targets); (samples,) */
    const int32_t *index, *size;    /* (rows, steps, most): numbers of samples; (sites, steps): how many, 0 at the end */
    const int32_t *site, *row;      /* (rounds, models): where a model is, and its row of index */
    const uint8_t *fresh;           /* (rounds,): whether moments start afresh */
    const double *rate;             /* (rounds,) */
    const float *pull;              /* (sites,): towards the reference */
    double momentum, decay, beta1, beta2, epsilon, huber;
    float *outputs;                 /* (models, steps, most, outputs) of the last round */
    const float *start;             /* the model from which all set out, flat: nobody's own is read or written then */
    const double *weight;           /* (models,): in the sum */
    double *total;                  /* (parts, flat): the weighted sums of each part's models, added to */
    float *square;                  /* (models,): the squares of a model's numbers, added up */
};

/* The sums of four vectors. */
#define MIX __builtin_shufflevector
INLINE four sums(vector a, vector b, vector c, vector d) {
#if SET == 3
    vector ab = MIX(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                MIX(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    vector cd = MIX(c, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                MIX(c, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    vector x = MIX(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               MIX(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    x += MIX(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    x += MIX(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    return MIX(x, x, 0, 4, 8, 12);
#elif SET
    vector ab = MIX(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + MIX(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    vector cd = MIX(c, d, 0, 1, 2, 3, 8, 9, 10, 11) + MIX(c, d, 4, 5, 6, 7, 12, 13, 14, 15);
    vector x = MIX(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + MIX(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    x += MIX(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
    return MIX(x, x, 0, 4, 2, 6);
#else
    vector ab = MIX(a, b, 0, 1, 4, 5) + MIX(a, b, 2, 3, 6, 7), cd = MIX(c, d, 0, 1, 4, 5) + MIX(c, d, 2, 3, 6, 7);
    return MIX(ab, cd, 0, 2, 4, 6) + MIX(ab, cd, 1, 3, 5, 7);
#endif
}

/* z[m][n] = sum over i of x[m][i] * w[n][i], for M samples and N outputs; four outputs are written. */
INLINE void dots(const int M, const int N, int width, const float *const *x, const float *w, float *z, long ld, int relu) {
    vector sum[6][4] = {};
    for (int i = 0; i < width; i += W) {
        vector b[4];
        EACH(n, N) b[n] = load(w + (long)n * width + i);
        EACH(m, M) {
            vector a = load(x[m] + i);
            EACH(n, N) sum[m][n] += a * b[n];
        }
    }
    EACH(m, M) {
        four out = sums(sum[m][0], sum[m][1], sum[m][2], sum[m][3]);
        *(memory4 *)(z + m * ld) = relu ? (four)((whole4)out & (out > 0)) : out;
    }
}

/* c[m][.] = sum over k of a(m, k) * b[k][from ...], N vectors wide, plus d like c unless null; a(m, k) = a[m * sm + k * sk]. */
INLINE void outer(const int M, const int N, int K, const float *a, long sm, long sk, const float *const *b, int from,
                  float *c, long ld, const float *d) {
    vector sum[6][4] = {};
    if (d) EACH(m, M) EACH(n, N) sum[m][n] = load(d + m * ld + n * W);
    for (int k = 0; k < K; k++) {
        const float *row = b[k] + from;
        vector v[4];
        EACH(n, N) v[n] = load(row + n * W);
        EACH(m, M) {
            vector one = all(a[m * sm + k * sk]);
            EACH(n, N) sum[m][n] += one * v[n];
        }
    }
    EACH(m, M) EACH(n, N) store(c + m * ld + n * W, sum[m][n]);
}

static void forward(int samples, int outputs, int width, const float *const *x, const float *w, float *z, long ld, int relu) {
    for (int o = 0; o < outputs; o += 4)
        for (int s = 0, m; s < samples; s += m) {
            m = share(samples - s, MANY ? 6 : 3);
            const float *from = w + (long)o * width;
            float *to = z + s * ld + o;
            if (outputs - o == 1) BY_ROWS(dots, 1, width, x + s, from, to, ld, relu)
            else if (outputs - o == 2) BY_ROWS(dots, 2, width, x + s, from, to, ld, relu)
            else BY_ROWS(dots, 4, width, x + s, from, to, ld, relu)
        }
}

static void product(int rows, int width, int K, const float *a, long sm, long sk, const float *const *b, float *c,
                    const float *d) {
    for (int i = 0, n; i < width; i += n * W) {
        n = share((width - i) / W, MANY ? 4 : 2);
        for (int r = 0, m; r < rows; r += m) {
            m = share(rows - r, 6);
            const long place = (long)r * width + i;
            float *to = c + place;
            const float *adds = d ? d + place : 0;
            if (n == 1) BY_ROWS(outer, 1, K, a + r * sm, sm, sk, b, i, to, width, adds)
            else if (n == 2) BY_ROWS(outer, 2, K, a + r * sm, sm, sk, b, i, to, width, adds)
            else if (MANY && n == 3) BY_ROWS(outer, 3, K, a + r * sm, sm, sk, b, i, to, width, adds)
            else if (MANY) BY_ROWS(outer, 4, K, a + r * sm, sm, sk, b, i, to, width, adds)
        }
    }
}

/* e^x to 2e-7, x held between -87 and 88 (Cephes' polynomial). */
static void exponentials(float *at, int count) {
    for (int i = 0; i < count; i += W) {
        vector x = load(at + i), low = all(-87.0f), high = all(88.0f);
        whole is_low = x < low, is_high = x > high;
        x = (vector)(((whole)x & ~(is_low | is_high)) | ((whole)low & is_low) | ((whole)high & is_high));
        vector shifted = x * all(1.44269504f) + all(12582912.0f); /* its last bits are the nearest whole number */
        whole n = (whole)shifted - (whole)all(12582912.0f);
        vector k = __builtin_convertvector(n, vector), r = x - k * all(0.693359375f) + k * all(2.12194440e-4f);
        vector p = all(1.9875691500e-4f) * r + all(1.3981999507e-3f);
        p = (p * r + all(8.3334519073e-3f)) * r + all(4.1665795894e-2f);
        p = (p * r + all(1.6666665459e-1f)) * r + all(5.0000001201e-1f);
        store(at + i, (vector)((whole)(p * r * r + r + all(1.0f)) + (n << 23)));
    }
}

static float sigmoid(float z) { return 1 / (1 + expf(-z)); }

/* The slope of an ordinal loss in place (fedsmall.training.gradients.losses, "ordinal"). */
static void ordinal(float *z, int out, int grade) {
    float odds[2] = {z[0], z[0]}; /* at the last threshold that was passed, and at the first ahead */
    for (int o = 1; o < out; o++) {
        const float step = fmaxf(z[o], 0) + log1pf(expf(-fabsf(z[o])));
        if (o <= grade - 1) odds[0] -= step;
        if (o <= grade) odds[1] -= step;
    }
    const float passed = grade > 0 ? sigmoid(-odds[0]) : 0, ahead = grade < out ? sigmoid(odds[1]) : 0;
    for (int o = 0; o < out; o++) {
        const float behind = (o <= grade ? ahead : 0) - (o <= grade - 1 ? passed : 0), narrow = sigmoid(-z[o]);
        z[o] = o ? -(1 - narrow) * behind - (o == grade) * narrow : behind;
    }
}

/* Outputs z, (samples, FOURS(outputs)), become the slopes of the loss, each times the scale and the sample's share. */
static void slopes(const struct walk *w, int samples, const int32_t *mine, float scale, float *z) {
    const int out = w->width[w->layers], ld = FOURS(out), cross = w->loss <= SOFT_CROSS_ENTROPY;
    for (int s = 0; cross && s < samples; s++) {
        float *of = z + s * ld, top = of[0];
        for (int o = 1; o < out; o++) top = of[o] > top ? of[o] : top;
        for (int o = 0; o < out; o++) of[o] -= top;
    }
    if (w->loss <= SIGMOID || w->loss == HAZARD) exponentials(z, samples * ld);
    for (int s = 0; s < samples; s++) {
        float *g = z + s * ld, total = 0;
        const float *y = w->y + (long)mine[s] * w->targets, own = scale * w->share[mine[s]], each = own / out;
        if (w->loss == ORDINAL) ordinal(g, out, (int)y[0]);
        for (int o = 0; cross && o < out; o++) total += g[o];
        for (int o = 0; o < out; o++)
            switch (w->loss) {
            case CROSS_ENTROPY: g[o] = own * (g[o] / total - (o == y[0])); break;
            case SOFT_CROSS_ENTROPY: g[o] = own * (g[o] / total - y[o]); break;
            case SIGMOID: g[o] = each * (g[o] / (1 + g[o]) - y[o]); break;
            case HINGE: g[o] = (2 * y[0] - 1) * g[o] < 1 ? own * (1 - 2 * y[0]) : 0; break;
            case L1: g[o] = each * ((g[o] > y[o]) - (g[o] < y[o])); break;
            case SQUARES: g[o] = 2 * each * (g[o] - y[o]); break;
            case HUBER: g[o] = each * fminf(fmaxf(g[o] - y[o], -w->huber), w->huber); break;
            case HAZARD: g[o] = own * ((o < y[0]) * g[o] - (o == y[0]) * y[1]) / (1 + g[o]); break;
            default: g[o] *= own;
            }
    }
}

/* One step of an optimizer on a flat model, with the gradient g; arrays that there are not are null. */
static void update(const struct walk *w, long size, float *const *part, float *restrict g, double rate, float pull, int64_t *count) {
    float *restrict p = part[MODEL], *restrict m = part[MOMENT], *restrict q = part[SQUARE];
    const float *restrict reference = part[REFERENCE], *restrict shift = part[SHIFT];
    const float decay = w->decay, momentum = w->momentum, lr = rate;
    if (reference) for (long i = 0; i < size; i++) g[i] += pull * (p[i] - reference[i]);
    if (shift) for (long i = 0; i < size; i++) g[i] += shift[i];
    if (decay != 0) for (long i = 0; i < size; i++) g[i] += decay * p[i];
    if (w->adam) {
        const double steps = ++*count;
        const float first = 1 - w->beta1, second = 1 - w->beta2, kept = w->beta2, epsilon = w->epsilon;
        const float pace = rate / (1 - pow(w->beta1, steps)), spread = 1 / sqrt(1 - pow(w->beta2, steps));
        for (long i = 0; i < size; i++) {
            m[i] += first * (g[i] - m[i]);
            q[i] = kept * q[i] + second * g[i] * g[i];
            p[i] -= pace * m[i] / (sqrtf(q[i]) * spread + epsilon);
        }
    } else {
        if (m) for (long i = 0; i < size; i++) g[i] = m[i] = momentum * m[i] + g[i];
        for (long i = 0; i < size; i++) p[i] -= lr * g[i];
    }
}

/* A row of a part into the flat model, or back. */
static void move(const struct walk *w, int part, long row, float *flat, int back) {
    for (int l = 0; l < w->layers; l++) {
        const long in = w->width[l], out = w->width[l + 1], ld = PAD(in + 1);
        float *weight = w->array[part][l][0] + row * out * in, *bias = w->array[part][l][1];
        for (long o = 0; o < out; o++) {
            memcpy(back ? weight + o * in : flat + o * ld, back ? flat + o * ld : weight + o * in, 4 * in);
            if (bias && back) bias[row * out + o] = flat[o * ld + in];
            else if (bias) flat[o * ld + in] = bias[row * out + o];
        }
        flat += FOURS(out) * ld;
    }
}

/* What a thread works in: a model as a flat array for each part, its gradient, and the maps of a batch. */
struct room {
    long size, offset[LAYERS];
    int plain; /* gradient descent and nothing else: steps are added as they are computed */
    const float *now; /* the model as it is read: the one that is trained, or the start before its first step */
    float *memory, *model[TOGETHER], *part[PARTS], *gradient, *ahead, *behind;
    const float **rows, **input[LAYERS], **weight[LAYERS]; /* rows of what comes into each layer, and of its weights */
};

static int furnish(const struct walk *w, struct room *r) {
    const int L = w->layers, most = w->most;
    long maps = 0, wide = PAD(most * FOURS(w->width[L])), outputs = 0;
    for (int l = 0; l < L; l++) {
        const long ld = PAD(w->width[l] + 1);
        r->offset[l] = r->size;
        r->size += FOURS(w->width[l + 1]) * ld;
        maps += most * ld;
        wide = most * ld > wide ? most * ld : wide;
        outputs += w->width[l + 1];
    }
    r->size = PAD(r->size);
    const int together = w->total ? TOGETHER : 1;
    long parts = together; /* and the gradient */
    for (int p = 0; p < PARTS; p++) parts += w->array[p][0][0] != 0;
    r->memory = calloc(parts * r->size + maps + 2 * wide + 16, 4);
    r->rows = malloc((L * most + outputs) * sizeof *r->rows);
    if (!r->memory || !r->rows) return 0;
    float *at = (float *)(((uintptr_t)r->memory + 63) / 64 * 64);
    r->plain = w->decay == 0;
    for (int j = 0; j < TOGETHER; j++) r->model[j] = at + j % together * r->size;
    at += (together - 1) * r->size;
    for (int p = 0; p < PARTS; p++) {
        r->part[p] = w->array[p][0][0] ? at : 0;
        at += r->part[p] ? r->size : 0;
        r->plain &= p == MODEL || !r->part[p];
    }
    if (w->start && r->part[REFERENCE]) r->part[REFERENCE] = (float *)w->start;
    r->gradient = at; r->ahead = at + r->size; r->behind = r->ahead + wide; at = r->behind + wide;
    const float **row = r->rows;
    for (int l = 0; l < L; l++) {
        r->input[l] = row;
        for (int s = 0; s < most; s++, at += PAD(w->width[l] + 1)) *row++ = at;
        r->weight[l] = row;
        row += w->width[l + 1];
    }
    return 1;
}

/* Take a flat model for the weights that are read. */
static void read_from(const struct walk *w, struct room *r, const float *model) {
    r->now = model;
    for (int l = 1; l < w->layers; l++)
        for (long o = 0; o < w->width[l + 1]; o++) r->weight[l][o] = model + r->offset[l] + o * PAD(w->width[l] + 1);
}

/* The outputs of n samples, (n, FOURS(outputs)), into behind. */
static void forwards(const struct walk *w, struct room *r, int n, const int32_t *mine) {
    for (int s = 0; s < n; s++) r->input[0][s] = w->x + (long)mine[s] * w->stride;
    for (int l = 0; l < w->layers; l++) {
        const int last = l + 1 == w->layers, out = w->width[l + 1], ld = last ? FOURS(out) : PAD(out + 1);
        float *z = last ? r->behind : (float *)r->input[l + 1][0];
        forward(n, out, PAD(w->width[l] + 1), r->input[l], r->now + r->offset[l], z, ld, w->relu[l]);
        for (int s = 0; s < n && !last; s++) z[s * ld + out] = w->array[MODEL][l + 1][1] != 0; /* the bias's input */
    }
}

/* From the slopes in behind: the step itself where it is plain, else the gradient. */
static void backwards(const struct walk *w, struct room *r, int n) {
    for (int l = w->layers - 1, ld = FOURS(w->width[w->layers]); l >= 0; l--) {
        const int in = PAD(w->width[l] + 1), out = w->width[l + 1];
        if (l) product(n, in, out, r->behind, ld, 1, r->weight[l], r->ahead, 0);
        for (long i = 0; l && w->relu[l - 1] && i < (long)n * in; i += W) {
            const vector x = load(r->input[l][0] + i);
            store(r->ahead + i, (vector)((whole)load(r->ahead + i) & (x > 0)));
        }
        product(out, in, n, r->behind, 1, ld, r->input[l], (r->plain ? r->part[MODEL] : r->gradient) + r->offset[l],
                r->plain ? r->now + r->offset[l] : 0);
        float *swap = r->behind; r->behind = r->ahead; r->ahead = swap; ld = in;
    }
}

/* Round t of model k, where it is. */
static void one_round(const struct walk *w, struct room *r, int k, int t, int64_t *count) {
    const long place = (long)t * w->models + k, site = w->site[place], out = w->width[w->layers];
    for (int p = MOMENT; p <= SQUARE; p++) if (r->part[p] && w->fresh[t]) memset(r->part[p], 0, 4 * r->size);
    if (w->fresh[t]) *count = 0;
    for (int p = REFERENCE; p < PARTS; p++)
        if (r->part[p] && r->part[p] != w->start && (!t || site != w->site[place - w->models]))
            move(w, p, site, r->part[p], 0);
    for (int step = 0, n; step < w->steps && (n = w->size[site * w->steps + step]); step++) {
        const int32_t *mine = w->index + ((long)w->row[place] * w->steps + step) * w->most;
        forwards(w, r, n, mine);
        for (int s = 0; s < n && w->outputs && t == w->rounds - 1; s++)
            memcpy(w->outputs + (((long)k * w->steps + step) * w->most + s) * out, r->behind + s * FOURS(out), 4 * out);
        slopes(w, n, mine, (r->plain ? -w->rate[t] : 1) / n, r->behind);
        backwards(w, r, n);
        if (r->now == w->start) read_from(w, r, r->part[MODEL]);
        if (!r->plain) update(w, r->size, r->part, r->gradient, w->rate[t], w->pull ? w->pull[site] : 0, count);
    }
}

/* Add M models from the first on to the sum of their part, which they may begin. */
INLINE void add(const int M, const struct walk *w, struct room *r, int first, double *total, int begins) {
    narrow squares[TOGETHER] = {};
    for (long i = 0; i < r->size; i += D) {
        wide sum = begins ? (wide){} : *(wide *)(total + i);
        EACH(k, M) {
            const narrow x = *(const narrow *)(r->model[k] + i);
            squares[k] += x * x;
            sum += w->weight[first + k] * __builtin_convertvector(x, wide);
        }
        *(wide *)(total + i) = sum;
    }
    EACH(k, M) {
        w->square[first + k] = 0;
        for (int i = 0; i < D; i++) w->square[first + k] += squares[k][i];
    }
}

/* Model k through all rounds, worked at where it is put. */
static void train(const struct walk *w, struct room *r, int k, float *where) {
    int64_t count = w->count ? w->count[k] : 0;
    r->part[MODEL] = where;
    for (int p = MODEL; p <= SQUARE; p++) {
        if (!r->part[p] || (p == MODEL && w->start)) continue;
        memset(r->part[p], 0, 4 * r->size); /* padding, too: 0 * NaN of the model before is NaN */
        move(w, p, k, r->part[p], 0);
    }
    if (w->start && !r->plain) memcpy(where, w->start, 4 * r->size);
    read_from(w, r, w->start && r->plain ? w->start : where);
    for (int t = 0; t < w->rounds; t++) one_round(w, r, k, t, &count);
    if (r->now == w->start) memcpy(where, w->start, 4 * r->size); /* it took no step */
    for (int p = w->start ? MOMENT : MODEL; p <= SQUARE; p++) if (r->part[p]) move(w, p, k, r->part[p], 1);
    if (w->count) w->count[k] = count;
}

/* The models of parts first .. last - 1 through all rounds, in place. 0; 1 where there is no memory, with nothing changed. */
int NAME(walk)(const struct walk *w, int first, int last) {
    struct room r = {0};
    const int failed = !furnish(w, &r);
    for (int part = first; part < last && !failed; part++) {
        const int begin = (long)w->models * part / w->parts, end = (long)w->models * (part + 1) / w->parts;
        for (int from = begin, m; from < end; from += m) {
            m = share(end - from, TOGETHER);
            for (int k = 0; k < m; k++) train(w, &r, from + k, r.model[k]);
            if (w->total) BY_ROWS(add, w, &r, from, w->total + part * r.size, from == begin)
        }
    }
    free(r.rows);
    free(r.memory);
    return failed;
}

#if SET == 0
int version(void) { return 5; } /* what a library built of older files is known by: raise it with every change */
int size_of_walk(void) { return sizeof(struct walk); }

/* Let threads walk shares of the parts, each the next that nobody has taken; whether one had no memory. */
int share_out(int (*walk)(const void *, int, int), const void *of, int parts, int shares, int threads) {
    int failed = 0;
    #pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(|:failed)
    for (int i = 0; i < shares; i++) failed |= walk(of, (long)parts * i / shares, (long)parts * (i + 1) / shares);
    return failed;
}

/* Whether this processor has a set of instructions. */
int has(int set) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (set >= 2) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (set == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return !set;
}

/* The set that is fastest here. */
int best(void) {
#if defined(__x86_64__)
    if (has(3)) return __builtin_cpu_is("amdfam19h") ? 2 : 3; /* Zen 4 does half of a whole vector at a time */
#endif
    return has(1);
}
#endif
