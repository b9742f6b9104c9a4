-- The journal of a node and its only commit point. Integer keys inside; the contract's ids are columns looked up at the edge.
-- AUTOINCREMENT everywhere a key is remembered in memory, so that the key of something removed never comes back as something else.

CREATE TABLE stamp (                      -- the embedding model that wrote the model's tables
    only INTEGER PRIMARY KEY CHECK (only = 1),
    space TEXT NOT NULL,
    model TEXT NOT NULL,
    revision TEXT,
    width INTEGER NOT NULL,
    stamped_at INTEGER NOT NULL
) STRICT;

-- ------------------------------------------------------------------------------------------ who and what

CREATE TABLE owners (
    owner_key INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_id TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE groups (
    group_key INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_key INTEGER NOT NULL REFERENCES owners,
    group_id TEXT NOT NULL,
    label TEXT NOT NULL,
    description TEXT,
    tags TEXT NOT NULL DEFAULT '[]',      -- JSON array of strings
    access TEXT NOT NULL CHECK (access IN ('available', 'restricted')),
    UNIQUE (owner_key, group_id)
) STRICT;
CREATE INDEX groups_by_id ON groups (group_id);

CREATE TABLE contents (                   -- what is stored once, whatever documents point to it
    content_key INTEGER PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL UNIQUE,
    media_type TEXT NOT NULL CHECK (media_type IN ('text', 'image', 'code')),
    state TEXT NOT NULL CHECK (state IN ('pending', 'ready', 'failed')),
    failure TEXT,
    readers TEXT NOT NULL DEFAULT ''      -- reader tokens of the documents that point here, sorted, one space between
) STRICT;

CREATE TABLE partitions (                 -- keys of one content are consecutive, in order
    partition_key INTEGER PRIMARY KEY AUTOINCREMENT,
    content_key INTEGER NOT NULL REFERENCES contents ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,
    text TEXT NOT NULL,
    brought INTEGER NOT NULL CHECK (brought IN (0, 1)),   -- the caller brought the vector
    vector BLOB,                          -- a brought vector (little-endian float32) until it lies in a segment
    UNIQUE (content_key, ordinal)
) STRICT;

CREATE TABLE documents (
    document_key INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_key INTEGER NOT NULL REFERENCES owners,
    document_id TEXT NOT NULL,
    content_key INTEGER NOT NULL REFERENCES contents,
    name TEXT,
    name_key TEXT NOT NULL DEFAULT '',    -- normalised tokens of the name
    metadata BLOB NOT NULL DEFAULT x'',
    urls TEXT,                            -- JSON array, one entry per partition, or NULL when the caller gave none
    access TEXT NOT NULL CHECK (access IN ('available', 'restricted')),
    primary_group INTEGER REFERENCES groups,
    created_at INTEGER NOT NULL,          -- Unix seconds
    UNIQUE (owner_key, document_id)
) STRICT;
CREATE INDEX documents_by_content ON documents (content_key);
CREATE INDEX documents_by_id ON documents (document_id);
CREATE INDEX documents_by_name ON documents (owner_key, name_key) WHERE name_key <> '';

CREATE TABLE document_groups (
    document_key INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    group_key INTEGER NOT NULL REFERENCES groups,
    PRIMARY KEY (document_key, group_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX document_groups_by_group ON document_groups (group_key);

-- ------------------------------------------------------------------------------------------ work still to do

CREATE TABLE pending (                    -- accepted, not yet indexed; `graph` is what the deposit said about entities
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    document_key INTEGER NOT NULL UNIQUE REFERENCES documents ON DELETE CASCADE,
    graph TEXT NOT NULL
) STRICT;

CREATE TABLE set_aside (                  -- as `pending`, of content that could not be embedded; taken up when it is tried again
    document_key INTEGER PRIMARY KEY REFERENCES documents ON DELETE CASCADE,
    graph TEXT NOT NULL
) STRICT;

CREATE TABLE unembedded (                 -- edges and predicates whose words are not embedded yet
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    purpose TEXT NOT NULL CHECK (purpose IN ('relationship', 'predicate')),
    subject_key INTEGER NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (purpose, subject_key)
) STRICT;

CREATE TABLE relink (                     -- documents whose links by name must be found again
    document_key INTEGER PRIMARY KEY REFERENCES documents ON DELETE CASCADE
) STRICT;

-- ------------------------------------------------------------------------------------------ vectors

CREATE TABLE segments (                   -- files of fixed-width rows; slots beyond the committed count are free space
    segment INTEGER PRIMARY KEY,
    width INTEGER NOT NULL,
    slots INTEGER NOT NULL
) STRICT;

CREATE TABLE vectors (                    -- subject_key: a partition, relationship or predicate, as `purpose` says
    vector_key INTEGER PRIMARY KEY AUTOINCREMENT,
    purpose TEXT NOT NULL CHECK (purpose IN ('model', 'caller', 'relationship', 'predicate')),
    width INTEGER NOT NULL,
    subject_key INTEGER NOT NULL,
    segment INTEGER NOT NULL REFERENCES segments,
    slot INTEGER NOT NULL,
    crc INTEGER NOT NULL
) STRICT;
CREATE INDEX vectors_by_subject ON vectors (subject_key, purpose);
CREATE INDEX vectors_by_segment ON vectors (segment);

-- ------------------------------------------------------------------------------------------ words

-- Normalised tokens of every searchable partition; `readers` keeps the access filter inside the index.
CREATE VIRTUAL TABLE words USING fts5 (
    body, readers, content = '', contentless_delete = 1, tokenize = 'porter ascii'
);

-- ------------------------------------------------------------------------------------------ graph

CREATE TABLE entities (
    entity_key INTEGER PRIMARY KEY AUTOINCREMENT,
    entity_id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    name_key TEXT NOT NULL
) STRICT;
CREATE INDEX entities_by_name ON entities (name_key);

CREATE TABLE predicates (
    predicate_key INTEGER PRIMARY KEY AUTOINCREMENT,
    predicate_id TEXT NOT NULL UNIQUE,
    predicate TEXT NOT NULL,
    readers TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE TABLE relationships (
    relationship_key INTEGER PRIMARY KEY AUTOINCREMENT,
    relationship_id TEXT NOT NULL UNIQUE,
    subject_key INTEGER NOT NULL REFERENCES entities,
    predicate_key INTEGER NOT NULL REFERENCES predicates,
    object_key INTEGER NOT NULL REFERENCES entities,
    readers TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX relationships_by_subject ON relationships (subject_key);
CREATE INDEX relationships_by_object ON relationships (object_key);
CREATE INDEX relationships_by_predicate ON relationships (predicate_key);

-- Provenance is the truth of the graph: an entity or edge lives as long as a document asserts it; every count is a sum over these.
CREATE TABLE assertions (
    document_key INTEGER NOT NULL REFERENCES documents,
    entity_key INTEGER NOT NULL REFERENCES entities,
    owner_key INTEGER NOT NULL REFERENCES owners,
    source TEXT NOT NULL CHECK (source IN ('given', 'keyword', 'name')),
    spelling TEXT NOT NULL,
    linkable INTEGER NOT NULL CHECK (linkable IN (0, 1)),   -- the spelling may be linked by mention
    mentions INTEGER NOT NULL,
    PRIMARY KEY (document_key, entity_key, source)
) STRICT, WITHOUT ROWID;
CREATE INDEX assertions_given ON assertions (document_key) WHERE source = 'given';
CREATE INDEX assertions_by_entity ON assertions (entity_key, owner_key, document_key);
CREATE INDEX assertions_bearing_names ON assertions (entity_key, owner_key) WHERE source <> 'keyword';
CREATE INDEX assertions_linkable ON assertions (entity_key, owner_key) WHERE linkable;

CREATE TABLE relationship_assertions (
    document_key INTEGER NOT NULL REFERENCES documents,
    relationship_key INTEGER NOT NULL REFERENCES relationships,
    weight INTEGER NOT NULL,
    PRIMARY KEY (document_key, relationship_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX relationship_assertions_by_relationship ON relationship_assertions (relationship_key, document_key);

CREATE TABLE predicate_readers (          -- how many (document, edge) pairs let a reader see a predicate
    predicate_key INTEGER NOT NULL REFERENCES predicates,
    reader TEXT NOT NULL,
    edges INTEGER NOT NULL,
    PRIMARY KEY (predicate_key, reader)
) STRICT, WITHOUT ROWID;

CREATE TABLE mentions (                   -- links by name; a pure function of the owner's names and texts
    document_key INTEGER NOT NULL REFERENCES documents,
    entity_key INTEGER NOT NULL REFERENCES entities,
    PRIMARY KEY (document_key, entity_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX mentions_by_entity ON mentions (entity_key, document_key);

CREATE TABLE names (                      -- an owner's linkable names; `head` is what a text looks them up by
    owner_key INTEGER NOT NULL REFERENCES owners,
    name_key TEXT NOT NULL,
    head TEXT NOT NULL,
    PRIMARY KEY (owner_key, name_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX names_by_head ON names (owner_key, head);
