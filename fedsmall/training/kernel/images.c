/* A block of an image network: a 3 x 3 convolution, a normalisation, 2 x 2 max pooling and a ReLU, fused and in the cache.

   Images lie as (samples, height, width, models, channels). A convolution is Winograd's F(2 x 2, 3 x 3): 4 x 4 pixels and a
   filter become 16 numbers each, their products those of 2 x 2 outputs (Lavin and Gray, 2016): 16 matrix products, with
   4/9 of the multiplications. Its slopes go the same way back. */
#include "vectors.h"

/* As fedsmall.training.kernel.images fills it in. */
struct block {
    int32_t models, samples, height, width, in, out;
    int32_t group, together, pool, relu;     /* channels that share a mean (0: nothing is normalised), and whether samples do */
    float epsilon;
    const float *x, *weight, *bias;          /* (samples, height, width, models, in), (models, out, in, 3, 3), (models, out) */
    const float *scale, *shift;              /* (models, out); null where they are 1 and 0, as the bias may be */
    float *z, *mean, *var;                   /* (models, samples, height, width, out); twice (models, 1 or samples, out) */
    float *y;                                /* (samples, height, width, models, out), halved where it pools */
    const float *slope;                      /* of the loss, like y */
    float *dx, *dweight, *dbias, *dscale, *dshift; /* null where nobody asks */
};

/* c[m][.] = sum over k < K of a[m * sm + k * sk] * b[k * ld + .], N vectors wide, added to c where it adds. */
INLINE void tile(const int M, const int N, int K, const float *a, long sm, long sk, const float *b, long ld, float *c, long sc,
                 int adds) {
    vector sum[6][4] = {};
    if (adds) EACH(m, M) EACH(n, N) sum[m][n] = load(c + m * sc + n * W);
    for (int k = 0; k < K; k++, a += sk, b += ld) {
        vector v[4];
        EACH(n, N) v[n] = load(b + n * W);
        EACH(m, M) {
            vector one = all(a[m * sm]);
            EACH(n, N) sum[m][n] += one * v[n];
        }
    }
    EACH(m, M) EACH(n, N) store(c + m * sc + n * W, sum[m][n]);
}

static void multiply(int rows, int width, int K, const float *a, long sm, long sk, const float *b, long ld, float *c, int adds) {
    for (int i = 0, n; i < width; i += n * W) {
        n = share((width - i) / W, MANY ? 4 : 2);
        for (int r = 0, m; r < rows; r += m) {
            m = share(rows - r, 6);
            float *to = c + (long)r * width + i;
            if (n == 1) BY_ROWS(tile, 1, K, a + r * sm, sm, sk, b + i, ld, to, width, adds)
            else if (n == 2) BY_ROWS(tile, 2, K, a + r * sm, sm, sk, b + i, ld, to, width, adds)
            else if (MANY && n == 3) BY_ROWS(tile, 3, K, a + r * sm, sm, sk, b + i, ld, to, width, adds)
            else if (MANY) BY_ROWS(tile, 4, K, a + r * sm, sm, sk, b + i, ld, to, width, adds)
        }
    }
}

/* Winograd's transforms of a line of four, in place: of pixels (B') and back, of two outputs (A) and back. */
INLINE void to_pixels(vector *v, int s) {
    const vector a = v[0], b = v[s], c = v[2 * s], d = v[3 * s];
    v[0] = a - c; v[s] = b + c; v[2 * s] = c - b; v[3 * s] = b - d;
}
INLINE void from_pixels(vector *v, int s) {
    const vector a = v[0], b = v[s], c = v[2 * s], d = v[3 * s];
    v[0] = a; v[s] = b - c + d; v[2 * s] = b + c - a; v[3 * s] = -d;
}
INLINE void to_outputs(vector *v, int s) {
    const vector a = v[0], b = v[s], c = v[2 * s], d = v[3 * s];
    v[0] = a + b + c; v[s] = b - c - d;
}
INLINE void from_outputs(vector *v, int s) {
    const vector a = v[0], b = v[s];
    v[s] = a + b; v[2 * s] = a - b; v[3 * s] = -b;
}

/* The same of a line of three numbers of a filter, (G) and (G'). */
INLINE void to_four(vector a, vector b, vector c, vector *v, int s) {
    const vector half = (a + c) * 0.5f;
    v[0] = a; v[s] = half + b * 0.5f; v[2 * s] = half - b * 0.5f; v[3 * s] = c;
}
INLINE void from_four(vector a, vector b, vector c, vector d, vector *v, int s) {
    const vector half = (b + c) * 0.5f;
    v[0] = a + half; v[s] = (b - c) * 0.5f; v[2 * s] = half + d;
}

/* Filters (out, in, 3, 3), a row and a column so many apart, as (16, rows, columns). */
static void to_filters(const float *weight, int rows, long row, int columns, long column, float *filters) {
    const long size = (long)rows * columns;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c += W, filters += W) {
            float line[9][W];
            vector half[12], v[16];
            for (int i = 0; i < W; i++)
                for (int j = 0; j < 9; j++) line[j][i] = weight[9 * (r * row + (c + i) * column) + j];
            EACH(q, 3) to_four(load(line[q]), load(line[3 + q]), load(line[6 + q]), half + q, 3);
            EACH(p, 4) to_four(half[3 * p], half[3 * p + 1], half[3 * p + 2], v + 4 * p, 1);
            EACH(p, 4) EACH(q, 4) store(filters + (4 * p + q) * size, v[4 * p + q]);
        }
}

/* The slopes of filters, (16, in, out) to (out, in, 3, 3). */
static void from_filters(const float *filters, int in, int out, float *weight) {
    const long size = (long)in * out;
    for (int r = 0; r < in; r++)
        for (int c = 0; c < out; c += W, filters += W) {
            float line[9][W];
            vector half[12], v[9];
            EACH(q, 4) from_four(load(filters + q * size), load(filters + (4 + q) * size), load(filters + (8 + q) * size),
                                 load(filters + (12 + q) * size), half + q, 4);
            EACH(p, 3) from_four(half[4 * p], half[4 * p + 1], half[4 * p + 2], half[4 * p + 3], v + 3 * p, 1);
            for (int j = 0; j < 9; j++) store(line[j], v[j]);
            for (int i = 0; i < W; i++)
                for (int j = 0; j < 9; j++) weight[9 * ((c + i) * (long)in + r) + j] = line[j][i];
        }
}

/* An image cut into tiles of 2 x 2 outputs, `wide` a row, `rows` of them at a time so that a strip stays in the cache. */
struct strip { int high, wide, rows; };
static struct strip strip_of(const struct block *b) {
    const int wide = (b->width + 1) / 2, rows = 64 / wide;
    return (struct strip){(b->height + 1) / 2, wide, rows ? rows : 1};
}

/* Sample s of a model, at the inner pixels of an image with a border. */
static void frame(const struct block *b, int k, int s, float *image) {
    const long step = (long)b->models * b->in, line = 2L * strip_of(b).wide + 2;
    const float *x = b->x + (long)s * b->height * b->width * step + (long)k * b->in;
    for (int i = 0; i < b->height; i++)
        for (int j = 0; j < b->width; j++, x += step)
            for (int c = 0; c < b->in; c++) image[((i + 1) * line + j + 1) * PAD(b->in) + c] = x[c];
}

/* Tile rows from .. to - 1 of an image with `channels`: each tile of 4 x 4 transformed into (16, tiles, channels), and the
   slopes of such added to the image. */
static void to_tiles(struct strip t, int from, int to, int channels, const float *image, float *tiles) {
    const long count = (to - from) * (long)t.wide * channels, line = (2L * t.wide + 2) * channels;
    for (int i = from; i < to; i++)
        for (int j = 0; j < t.wide; j++)
            for (int c = 0; c < channels; c += W, tiles += W) {
                vector v[16];
                EACH(p, 4) EACH(q, 4) v[4 * p + q] = load(image + (2 * i + p) * line + (2 * j + q) * channels + c);
                EACH(q, 4) to_pixels(v + q, 4);
                EACH(p, 4) to_pixels(v + 4 * p, 1);
                EACH(p, 4) EACH(q, 4) store(tiles + (4 * p + q) * count, v[4 * p + q]);
            }
}
static void from_tiles(struct strip t, int from, int to, int channels, const float *tiles, float *image) {
    const long count = (to - from) * (long)t.wide * channels, line = (2L * t.wide + 2) * channels;
    for (int i = from; i < to; i++)
        for (int j = 0; j < t.wide; j++)
            for (int c = 0; c < channels; c += W, tiles += W) {
                float *at = image + 2 * i * line + 2L * j * channels + c;
                vector v[16];
                EACH(p, 4) EACH(q, 4) v[4 * p + q] = load(tiles + (4 * p + q) * count);
                EACH(q, 4) from_pixels(v + q, 4);
                EACH(p, 4) from_pixels(v + 4 * p, 1);
                EACH(p, 4) EACH(q, 4) {
                    float *pixel = at + p * line + q * channels;
                    store(pixel, load(pixel) + v[4 * p + q]);
                }
            }
}

/* Products (16, tiles, out) to outputs z plus a bias, and slopes of z, an image of whole tiles, to those of products. */
static void to_sums(const struct block *b, struct strip t, int from, int to, const float *products, const float *bias, float *z) {
    const long out = b->out, count = (to - from) * t.wide * out;
    for (int i = from; i < to; i++)
        for (int j = 0; j < t.wide; j++)
            for (int c = 0; c < out; c += W, products += W) {
                const vector level = bias ? load(bias + c) : all(0);
                vector v[16];
                EACH(p, 4) EACH(q, 4) v[4 * p + q] = load(products + (4 * p + q) * count);
                EACH(q, 4) to_outputs(v + q, 4);
                EACH(p, 2) to_outputs(v + 4 * p, 1);
                EACH(p, 2) EACH(q, 2) if (2 * i + p < b->height && 2 * j + q < b->width)
                    store(z + ((2L * i + p) * b->width + 2 * j + q) * out + c, v[4 * p + q] + level);
            }
}
static void from_sums(struct strip t, int from, int to, long out, const float *slopes, float *products) {
    const long count = (to - from) * t.wide * out;
    for (int i = from; i < to; i++)
        for (int j = 0; j < t.wide; j++)
            for (int c = 0; c < out; c += W, products += W) {
                vector v[16];
                EACH(p, 2) EACH(q, 2) v[4 * p + q] = load(slopes + ((2L * i + p) * 2 * t.wide + 2 * j + q) * out + c);
                EACH(p, 2) from_outputs(v + 4 * p, 1);
                EACH(q, 4) from_outputs(v + q, 4);
                EACH(p, 4) EACH(q, 4) store(products + (4 * p + q) * count, v[4 * p + q]);
            }
}

/* z -> z * rate + level is the normalisation of a set of samples, channel by channel; spread is 1 / sd. */
struct norm { float *rate, *level, *spread; };

static void norm_of(const struct block *b, int k, const float *mean, const float *var, struct norm n) {
    for (int c = 0; c < b->out; c++) {
        n.spread[c] = b->group ? 1 / sqrtf(var[c] + b->epsilon) : 1;
        n.rate[c] = n.spread[c] * (b->scale ? b->scale[(long)k * b->out + c] : 1);
        n.level[c] = (b->shift ? b->shift[(long)k * b->out + c] : 0) - (b->group ? mean[c] * n.rate[c] : 0);
    }
}

/* The means of z, or of squared distances from `mean`, over the samples and the channels of a group. */
static void means(const struct block *b, const float *z, int samples, const float *mean, float *result) {
    const int out = b->out, area = b->height * b->width;
    double total[out];
    memset(total, 0, sizeof total);
    for (int s = 0; s < samples; s++)
        for (int c = 0; c < out; c += W) {
            const float *at = z + (long)s * area * out + c;
            vector sum[4] = {}, from = mean ? load(mean + c) : all(0);
            for (int p = 0; p < area; p++, at += out) {
                const vector v = load(at) - from;
                sum[p % 4] += mean ? v * v : v;
            }
            for (int i = 0; i < W; i++) total[c + i] += (double)sum[0][i] + sum[1][i] + sum[2][i] + sum[3][i];
        }
    for (int c = 0; c < out; c += b->group) {
        double all_of = 0;
        for (int i = 0; i < b->group; i++) all_of += total[c + i];
        for (int i = 0; i < b->group; i++) result[c + i] = all_of / ((double)samples * area * b->group);
    }
}

INLINE vector choose(whole which, vector a, vector b) { return (vector)(((whole)a & which) | ((whole)b & ~which)); }
INLINE vector larger(vector a, vector b) { return choose((b > a) | (b != b), b, a); }
INLINE vector rectified(vector x) { return choose(x < 0, all(0), x); }

/* Normalise, pool and rectify a sample. */
static void finish(const struct block *b, int k, int s, const float *z, struct norm n) {
    const int size = b->pool ? 2 : 1, height = b->height / size, width = b->width / size, out = b->out;
    const long step = (long)b->models * out, row = (long)b->width * out;
    float *y = b->y + (long)s * height * width * step + (long)k * out;
    for (int i = 0; i < height; i++)
        for (int j = 0; j < width; j++, y += step)
            for (int c = 0; c < out; c += W) {
                const float *at = z + i * size * row + (long)j * size * out + c;
                const vector rate = load(n.rate + c), level = load(n.level + c);
                vector v = load(at) * rate + level;
                if (b->pool) {
                    v = larger(v, load(at + out) * rate + level);
                    v = larger(v, load(at + row) * rate + level);
                    v = larger(v, load(at + row + out) * rate + level);
                }
                store(y + c, b->relu ? rectified(v) : v);
            }
}

/* The way back through the normalisation of a set of samples: what slopes of the normalised add up to, alone and times
   the normalised; what makes of them slopes of z, own * slope + level + rate * z; and what these add up to. */
struct way { float *sum, *with, *own, *level, *rate, *bias; };

/* Both passes over a sample: the first adds up, the second, with a place for it, gives the slopes of z by whole tiles. */
INLINE void unfold(const int size, const int is_second, const struct block *b, int k, int s, const float *z, const float *mean,
                   struct norm n, struct way back, float *slopes) {
    const int height = b->height / size, width = b->width / size, out = b->out;
    const long step = (long)b->models * out, row = (long)b->width * out, line = (b->width + 1L) / 2 * 2 * out;
    const float *slope = b->slope + (long)s * height * width * step + (long)k * out;
    for (int c = 0; c < out; c += W) {
        const vector rate = load(n.rate + c), level = load(n.level + c), spread = load(n.spread + c);
        const vector own = load(back.own + c), flat = load(back.level + c), tilt = load(back.rate + c);
        const vector middle = b->group ? load(mean + c) : all(0);
        vector sum = {}, with = {};
        for (int i = 0; i < height; i++)
            for (int j = 0; j < width; j++) {
                const float *at = z + i * size * row + (long)j * size * out + c;
                vector d = load(slope + ((long)i * width + j) * step + c), v[4], best;
                whole left = ~(whole){}; /* where no pixel was taken yet */
                EACH(q, size * size) v[q] = load(at + (q / 2) * row + (q % 2) * out);
                best = v[0] * rate + level;
                EACH(q, size * size) best = larger(best, v[q] * rate + level);
                if (b->relu) d = (vector)((whole)d & ~(best <= 0));
                EACH(q, size * size) {
                    const whole taken = left & ~(v[q] * rate + level < best);
                    const vector mine = (vector)((whole)d & taken), of_z = own * mine + flat + tilt * v[q];
                    left &= ~taken;
                    with += mine * ((v[q] - middle) * spread);
                    sum += is_second ? of_z : mine;
                    if (is_second) store(slopes + (i * size + q / 2) * line + (j * size + q % 2) * (long)out + c, of_z);
                }
            }
        for (int i = 0; is_second && i < b->height; i++) /* at an edge that no pool takes */
            for (int j = i < height * size ? width * size : 0; j < b->width; j++) {
                const vector of_z = flat + tilt * load(z + i * row + (long)j * out + c);
                store(slopes + i * line + (long)j * out + c, of_z);
                sum += of_z;
            }
        float *total = (is_second ? back.bias : back.sum) + c;
        store(total, load(total) + sum);
        if (!is_second) store(back.with + c, load(back.with + c) + with);
    }
}

static void pass(const struct block *b, int k, int s, const float *z, const float *mean, struct norm n, struct way back,
                 float *slopes) {
    if (b->pool && slopes) unfold(2, 1, b, k, s, z, mean, n, back, slopes);
    else if (b->pool) unfold(2, 0, b, k, s, z, mean, n, back, slopes);
    else if (slopes) unfold(1, 1, b, k, s, z, mean, n, back, slopes);
    else unfold(1, 0, b, k, s, z, mean, n, back, slopes);
}

/* From the sums over a set of `samples` to the slopes of z. */
static void way_of(const struct block *b, int k, int samples, const float *mean, struct norm n, struct way back) {
    const int group = b->group ? b->group : 1;
    const double count = (double)samples * b->height * b->width * group;
    for (int c = 0; c < b->out; c += group) {
        double middle = 0, tilt = 0;
        for (int i = c; b->group && i < c + group; i++) {
            const double scale = b->scale ? b->scale[(long)k * b->out + i] : 1;
            middle += scale * back.sum[i] / count;
            tilt += scale * back.with[i] / count;
        }
        for (int i = c; i < c + group; i++) {
            back.own[i] = n.rate[i];
            back.rate[i] = -n.spread[i] * n.spread[i] * tilt;
            back.level[i] = -n.spread[i] * middle - (b->group ? back.rate[i] * mean[i] : 0);
        }
    }
}

/* What a thread works in. */
struct room { float *memory, *image, *around, *tiles, *products, *slopes, *filters, *gradient, *row[9]; };

static int furnish(const struct block *b, struct room *r) {
    const struct strip t = strip_of(b);
    const long in = PAD(b->in), out = b->out, size = 16 * in * out;
    const long pixels = 4L * (t.high + 1) * (t.wide + 1), tiles = 16L * t.rows * t.wide;
    r->memory = calloc(pixels * (2 * in + out) + tiles * (in + out) + 2 * size + 9 * out + 16, 4);
    if (!r->memory) return 0;
    r->image = (float *)(((uintptr_t)r->memory + 63) / 64 * 64);
    r->around = r->image + pixels * in;
    r->slopes = r->around + pixels * in;
    r->tiles = r->slopes + pixels * out;
    r->products = r->tiles + tiles * in;
    r->filters = r->products + tiles * out;
    r->gradient = r->filters + size;
    for (int i = 0; i < 9; i++) r->row[i] = r->gradient + size + i * out;
    return 1;
}

/* Models first .. last - 1: z, mean, var and y. 1 where there is no memory. */
int NAME(forwards)(const struct block *b, int first, int last) {
    const long in = b->in, wide = PAD(in), out = b->out, area = (long)b->height * b->width;
    const int sets = b->together ? 1 : b->samples;
    const struct strip t = strip_of(b);
    struct room r;
    if (!furnish(b, &r)) return 1;
    const struct norm n = {r.row[0], r.row[1], r.row[2]};
    for (int k = first; k < last; k++) {
        float *z = b->z + k * b->samples * area * out;
        to_filters(b->weight + 9 * k * in * out, in, 1, out, in, r.filters);
        for (int s = 0; s < b->samples; s++) {
            frame(b, k, s, r.image);
            for (int i = 0, to; i < t.high; i = to) {
                to = i + t.rows < t.high ? i + t.rows : t.high;
                const int tiles = (to - i) * t.wide;
                to_tiles(t, i, to, wide, r.image, r.tiles);
                for (int p = 0; p < 16; p++)
                    multiply(tiles, out, in, r.tiles + p * tiles * wide, wide, 1, r.filters + p * in * out, out,
                             r.products + p * tiles * out, 0);
                to_sums(b, t, i, to, r.products, b->bias ? b->bias + k * out : 0, z + s * area * out);
            }
            if (b->together && s < b->samples - 1) continue;
            const int from = b->together ? 0 : s;
            float *mean = b->mean + (k * sets + from) * out, *var = b->var + (k * sets + from) * out;
            if (b->group) means(b, z + from * area * out, s + 1 - from, 0, mean);
            if (b->group) means(b, z + from * area * out, s + 1 - from, mean, var);
            norm_of(b, k, mean, var, n);
            for (int of = from; of <= s; of++) finish(b, k, of, z + of * area * out, n);
        }
    }
    free(r.memory);
    return 0;
}

/* Models first .. last - 1: the slopes of what came in and of the weights. 1 where there is no memory. */
int NAME(backwards)(const struct block *b, int first, int last) {
    const long in = b->in, out = b->out, area = (long)b->height * b->width, sets = b->together ? 1 : b->samples;
    const long wide = PAD(in), step = b->models * in;
    const struct strip t = strip_of(b);
    struct room r;
    if (!furnish(b, &r)) return 1;
    const struct norm n = {r.row[0], r.row[1], r.row[2]};
    const struct way back = {r.row[3], r.row[4], r.row[5], r.row[6], r.row[7], r.row[8]};
    for (int k = first; k < last; k++) {
        const float *z = b->z + k * b->samples * area * out;
        memset(r.gradient, 0, 4 * 16 * in * out);
        memset(back.bias, 0, 4 * out);
        if (b->dx) to_filters(b->weight + 9 * k * in * out, out, in, in, 1, r.filters);
        for (int set = 0; set < sets; set++) {
            const int from = b->together ? 0 : set, to = b->together ? b->samples : set + 1;
            const float *mean = b->mean + (k * sets + set) * out, *var = b->var + (k * sets + set) * out;
            norm_of(b, k, mean, var, n);
            memset(back.sum, 0, 4 * out);
            memset(back.with, 0, 4 * out);
            for (int s = from; s < to; s++) pass(b, k, s, z + s * area * out, mean, n, back, 0);
            way_of(b, k, to - from, mean, n, back);
            for (int c = 0; c < out; c++) {
                if (b->dshift) b->dshift[k * out + c] += back.sum[c];
                if (b->dscale) b->dscale[k * out + c] += back.with[c];
            }
            for (int s = from; s < to; s++) {
                frame(b, k, s, r.image);
                pass(b, k, s, z + s * area * out, mean, n, back, r.slopes);
                if (b->dx) memset(r.around, 0, 16 * (t.high + 1) * (t.wide + 1) * in);
                for (int i = 0, to; i < t.high; i = to) {
                    to = i + t.rows < t.high ? i + t.rows : t.high;
                    const int tiles = (to - i) * t.wide;
                    to_tiles(t, i, to, wide, r.image, r.tiles);
                    from_sums(t, i, to, out, r.slopes, r.products);
                    for (int p = 0; p < 16; p++)
                        multiply(in, out, tiles, r.tiles + p * tiles * wide, 1, wide, r.products + p * tiles * out, out,
                                 r.gradient + p * in * out, 1);
                    for (int p = 0; b->dx && p < 16; p++)
                        multiply(tiles, in, out, r.products + p * tiles * out, out, 1, r.filters + p * in * out, in,
                                 r.tiles + p * tiles * in, 0);
                    if (b->dx) from_tiles(t, i, to, in, r.tiles, r.around);
                }
                float *dx = b->dx + s * area * step + k * in;
                for (int i = 0; b->dx && i < b->height; i++)
                    for (int j = 0; j < b->width; j++, dx += step)
                        memcpy(dx, r.around + ((i + 1) * (2L * t.wide + 2) + j + 1) * in, 4 * in);
            }
        }
        /* where a channel has a mean of its own, that takes the bias away, whose slope stays 0 */
        if (b->dbias && b->group != 1) memcpy(b->dbias + k * out, back.bias, 4 * out);
        from_filters(r.gradient, in, out, b->dweight + 9 * k * in * out);
    }
    free(r.memory);
    return 0;
}

#if SET == 0
int size_of_block(void) { return sizeof(struct block); }
#endif
