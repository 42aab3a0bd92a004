/* The loop of a maker (ringfence/kernel/calls/orders.py): it clones pid 1 of one sandbox after the other, by tables that
 * its caller made, and touches no memory of its caller's interpreter meanwhile. After each clone every page that a maker
 * writes must be copied, so this loop is worth more than what it does.
 *
 * An order comes from the warden, and holds no byte that a guest wrote: descriptors, numbers and texts for slots of the
 * tables. What it does not know how to do it hands back, with all that it has received. */
#ifndef RINGFENCE_ORDERS_H
#define RINGFENCE_ORDERS_H

enum { PREPARE, BEGIN, PLAN, CONFINE, WAIT, FINISH, NETWORK, IDMAP, TABLES };
enum { DESCRIPTORS = 6, DOOR = 5, LINKS = 24, PASSING = 7, TEXTS = 8, RIGHTS = 8, MESSAGE_BYTES = 16384, PLACES = 512,
       HEAD_BYTES = 32 };
/* Of the descriptors of a place. */
enum { NONE = -1 };
/* How many networks stay open: each takes some 170 KiB of the kernel's memory. */
enum { KEPT_NETWORKS = 64, NEW_NETWORK = 0x40000000 /* CLONE_NEWNET */, NEW_USER = 0x10000000 /* CLONE_NEWUSER */ };
/* How the loop ends: somebody else's message waits; in a child, with its tables behind it or with a call that failed; an
 * order that is the caller's to carry out; a child that is made, but could not be let go. */
enum { OTHER, CHILD, CHILD_FAILED, BACK, UNFINISHED };
enum { O_GROUP = 02000000 | 010000000 /* O_CLOEXEC, O_PATH */, MSG_PEEK = 2, MSG_NOSIGNAL = 0x4000, MSG_CLOEXEC = 0x40000000 };
enum { EINTR = 4, AT_FDCWD = -100, PR_SET_DUMPABLE = 4 };

struct draft {
    uint64_t number, flags, first_id; /* the last: on the host, of the first place */
    uint64_t tables[TABLES], sizes[TABLES];
    int32_t descriptors[DESCRIPTORS]; /* the slots of BEGIN that they go to, or -1 */
    int32_t links[LINKS][2];          /* what PREPARE leaves in a slot is in that slot of BEGIN, and is closed here */
    int32_t passing[PASSING][2];      /* a table, and a slot of it with a descriptor, or 0 once that is closed */
    int32_t texts[TEXTS][2];          /* the table and the slot for each text of an order; the first is the group */
    int32_t text_count, child;
    int32_t idmap;   /* the slot of PREPARE for that of the order's place, or -1: there is none */
    int32_t network; /* the slot of NETWORK with a new one, or -1: each child makes its own */
    int32_t carrier, id, mapped, unused; /* slots of IDMAP: a child, the id on the host, the namespace */
};

struct order {
    uint8_t kind, rights, unused[5], new_network;
    uint64_t ticket, draft;
    uint32_t place, texts;
    char text[MESSAGE_BYTES - HEAD_BYTES];
};

struct served {
    int32_t state, table, call, error;
    int64_t child;
    int32_t rights[RIGHTS], count, length;
    struct order order;
};

struct places {
    int32_t idmaps[PLACES], networks[PLACES];
};

_Static_assert(sizeof(struct draft) == 24 + 128 + 24 + 192 + 56 + 64 + 32 && sizeof(struct served) == 64 + MESSAGE_BYTES,
               "as orders.py packs them");

static int64_t *slots_of(const struct draft *draft, int table)
{
    const struct head *head = (const struct head *)draft->tables[table];
    return (int64_t *)(draft->tables[table] + draft->sizes[table] - (uint64_t)head->slots * 8);
}

static void set_slot(const struct draft *draft, int table, int slot, long value)
{
    if (table >= 0 && table < TABLES && slot >= 0 &&
        (uint32_t)slot < ((const struct head *)draft->tables[table])->slots)
        slots_of(draft, table)[slot] = value;
}

static void close_descriptor(long descriptor)
{
    if (descriptor >= 0)
        enter(NR_close, descriptor, 0, 0, 0, 0, 0);
}

static long run_table(const struct draft *draft, int table, struct served *served)
{
    uint32_t at = 0;
    long result = ringfence_calls_run((char *)draft->tables[table], draft->sizes[table], &at);
    served->table = table, served->call = (int32_t)at, served->error = (int32_t)-result;
    for (int number = 0; result && number < PASSING; number++)
        if (draft->passing[number][0] == table) {
            int64_t *held = &slots_of(draft, table)[draft->passing[number][1]];
            if (*held > 0)
                close_descriptor(*held);
            *held = 0; /* the table may fail again before it has put another one there */
        }
    return result;
}

/* Whether an order is there; what is no order is left to the caller. */
static int take(long door, struct served *served)
{
    char kind = 0;
    long got;
    do
        got = enter(NR_recvfrom, door, (long)&kind, 1, MSG_PEEK, 0, 0);
    while (got == -EINTR);
    if (got <= 0 || kind != 'o')
        return 0;
    struct { uint64_t length; int32_t level, type; int32_t rights[RIGHTS]; } control = {0, 0, 0, {0}};
    struct { void *base; uint64_t length; } part = {&served->order, MESSAGE_BYTES - 1};
    struct { void *name; uint64_t name_length; void *parts; uint64_t part_count; void *control; uint64_t length;
             int32_t flags; } message = {0, 0, &part, 1, &control, sizeof control, 0};
    const int32_t earlier = served->length;
    do
        got = enter(NR_recvmsg, door, (long)&message, MSG_CLOEXEC, 0, 0, 0);
    while (got == -EINTR);
    served->count = message.length >= 16 && control.level == 1 && control.type == 1 ? (int)(control.length - 16) / 4 : 0;
    for (int number = 0; number < served->count; number++)
        served->rights[number] = control.rights[number];
    served->length = got > 0 ? (int32_t)got : 0;
    /* A child forgets its own order: nothing of a longer one, of another sandbox, may be behind it. */
    for (int32_t at = served->length; at <= earlier; at++)
        ((char *)&served->order)[at] = 0;
    ((char *)&served->order)[served->length] = 0;
    return 1;
}

static const struct draft *draft_of(const struct draft *drafts, uint64_t count, const struct served *served)
{
    if (served->length < HEAD_BYTES || served->count != DESCRIPTORS)
        return 0;
    for (uint64_t number = 0; number < count; number++)
        if (drafts[number].number == served->order.draft && (uint32_t)drafts[number].text_count == served->order.texts)
            return &drafts[number];
    return 0;
}

/* Put the texts where the tables look for them; the first is returned. 0: there are fewer. */
static const char *place_texts(const struct draft *draft, struct served *served)
{
    const char *text = served->order.text, *end = (const char *)&served->order + served->length;
    for (int number = 0; number < draft->text_count; number++) {
        if (text >= end)
            return 0;
        set_slot(draft, draft->texts[number][0], draft->texts[number][1], (long)text);
        while (*text)
            text++;
        text++;
    }
    return served->order.text;
}

/* What is left of an earlier order is a number that may be another descriptor's by now. */
static void forget_earlier(const struct draft *draft)
{
    for (int number = 0; number < LINKS && draft->links[number][0] >= 0; number++)
        set_slot(draft, PREPARE, draft->links[number][0], -1);
    for (int number = 0; number < PASSING; number++)
        set_slot(draft, draft->passing[number][0], draft->passing[number][1], 0);
}

static void close_links(const struct draft *draft)
{
    for (int number = 0; number < LINKS && draft->links[number][0] >= 0; number++)
        close_descriptor(slots_of(draft, PREPARE)[draft->links[number][0]]);
}

static long clone_child(uint64_t flags, const char *group)
{
    uint64_t arguments[11] = {flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    long folder = -1;
    if (*group) {
        folder = enter(NR_openat, AT_FDCWD, (long)group, O_GROUP, 0, 0, 0);
        if (failed(folder))
            return folder;
        arguments[0] |= 0x200000000; /* CLONE_INTO_CGROUP */
        arguments[10] = (uint64_t)folder;
    }
    long child = enter(NR_clone3, (long)arguments, sizeof arguments, 0, 0, 0, 0);
    if (child)
        close_descriptor(folder);
    return child;
}

static long say(long socket, const void *words, long bytes)
{
    long sent;
    do
        sent = enter(NR_sendto, socket, (long)words, bytes, MSG_NOSIGNAL, 0, 0);
    while (sent == -EINTR);
    return sent;
}

static int32_t as_child(const struct draft *draft, struct served *served)
{
    for (int table = BEGIN; table < FINISH; table++)
        if (run_table(draft, table, served))
            return CHILD_FAILED;
    return CHILD;
}

/* The warden knows the child before anything can be heard of it. */
static int32_t let_go(long door, const struct draft *draft, struct served *served)
{
    const uint64_t made[3] = {'p', served->order.ticket, (uint64_t)served->child};
    say(door, made, sizeof made);
    set_slot(draft, FINISH, draft->child, served->child);
    if (run_table(draft, FINISH, served))
        return UNFINISHED;
    return failed(say(served->rights[DOOR], "g", 2)) ? UNFINISHED : OTHER;
}

/* A job has used the network of this place. The warden says so once, in an order that may come back. */
static void give_up_network(struct places *places, const struct served *served)
{
    if (served->length < HEAD_BYTES || served->order.place >= PLACES || !served->order.new_network)
        return;
    close_descriptor(places->networks[served->order.place]);
    places->networks[served->order.place] = NONE;
}

/* Be in the network that the child is born in: that of its place, or a new one. Whether that failed. */
static int enter_network(const struct draft *draft, struct places *places, struct served *served)
{
    int32_t *kept = &places->networks[served->order.place];
    if (draft->network < 0)
        return 0;
    if (*kept >= 0)
        return failed(enter(NR_setns, *kept, NEW_NETWORK, 0, 0, 0, 0));
    if (run_table(draft, NETWORK, served))
        return 1;
    const int32_t made = (int32_t)slots_of(draft, NETWORK)[draft->network];
    if (served->order.place < KEPT_NETWORKS)
        *kept = made;
    else
        close_descriptor(made);
    return 0;
}

/* Have the user namespace that maps the id of the place: a child carries it that never runs Python. Whether that
 * failed. */
static int have_idmap(const struct draft *draft, struct places *places, struct served *served)
{
    int32_t *kept = &places->idmaps[served->order.place];
    if (draft->idmap < 0 || *kept >= 0)
        return 0;
    const long child = ringfence_idle_clone(NEW_USER, enter(NR_getpid, 0, 0, 0, 0, 0, 0));
    if (failed(child))
        return 1;
    set_slot(draft, IDMAP, draft->carrier, child);
    set_slot(draft, IDMAP, draft->id, (long)(draft->first_id + served->order.place));
    const long result = run_table(draft, IDMAP, served);
    if (!result)
        *kept = (int32_t)slots_of(draft, IDMAP)[draft->mapped];
    enter(NR_kill, child, 9, 0, 0, 0, 0);
    enter(NR_wait4, child, 0, 0, 0, 0, 0);
    return result != 0;
}

static int32_t carry_out(long door, const struct draft *draft, struct places *places, struct served *served)
{
    const uint32_t place = served->order.place;
    const char *group = draft && place < PLACES ? place_texts(draft, served) : 0;
    if (!group || have_idmap(draft, places, served))
        return BACK;
    set_slot(draft, PREPARE, draft->idmap, draft->idmap >= 0 ? places->idmaps[place] : -1);
    forget_earlier(draft);
    if (enter_network(draft, places, served) || run_table(draft, PREPARE, served)) {
        close_links(draft);
        return BACK;
    }
    for (int number = 0; number < LINKS && draft->links[number][0] >= 0; number++)
        set_slot(draft, BEGIN, draft->links[number][1], slots_of(draft, PREPARE)[draft->links[number][0]]);
    for (int number = 0; number < DESCRIPTORS; number++)
        set_slot(draft, BEGIN, draft->descriptors[number], served->rights[number]);
    served->child = clone_child(draft->flags, group);
    if (!served->child)
        return as_child(draft, served);
    close_links(draft);
    if (!failed(served->child))
        return let_go(door, draft, served);
    enter(NR_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0, 0); /* PREPARE has allowed it, for a child */
    return BACK;
}

void ringfence_orders_serve(long door, const struct draft *drafts, uint64_t count, struct places *places,
                            struct served *served)
{
    while (take(door, served)) {
        give_up_network(places, served);
        served->state = carry_out(door, draft_of(drafts, count, served), places, served);
        if (served->state != OTHER)
            return;
        for (int number = 0; number < served->count; number++)
            close_descriptor(served->rights[number]);
    }
    served->state = OTHER;
}

#endif
