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

CREATE TABLE next_stamp (                 -- the model that everything is being embedded with anew, until it takes the other's place
    only INTEGER PRIMARY KEY CHECK (only = 1),
    space TEXT NOT NULL,
    model TEXT NOT NULL,
    revision TEXT,
    width INTEGER NOT NULL,
    stamped_at INTEGER NOT NULL
) STRICT;

CREATE TABLE policy (                     -- how a graph is made of texts; without a row, as the program says
    only INTEGER PRIMARY KEY CHECK (only = 1),
    body TEXT NOT NULL                    -- JSON
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
    UNIQUE (content_key, ordinal)
) STRICT;

CREATE TABLE brought_vectors (            -- until they lie in a segment; apart, so that the pages of `partitions` stay full
    partition_key INTEGER PRIMARY KEY REFERENCES partitions ON DELETE CASCADE,
    vector BLOB NOT NULL                  -- little-endian float32
) STRICT;

CREATE TABLE documents (
    document_key INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_key INTEGER NOT NULL REFERENCES owners,
    document_id TEXT NOT NULL,
    content_key INTEGER NOT NULL REFERENCES contents,
    name TEXT,
    name_key TEXT NOT NULL DEFAULT '',    -- normalised tokens of the name; '' when it is no name in the graph
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

CREATE TABLE group_tags (                 -- what a document in a group adds to the group's own tags; goes with the document
    group_key INTEGER NOT NULL,
    tag TEXT NOT NULL,
    document_key INTEGER NOT NULL,
    PRIMARY KEY (group_key, tag, document_key),
    FOREIGN KEY (document_key, group_key) REFERENCES document_groups ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX group_tags_by_document ON group_tags (document_key, group_key);

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
    patient INTEGER NOT NULL DEFAULT 0 CHECK (patient IN (0, 1)),   -- of no deposit: nobody waits for it
    UNIQUE (purpose, subject_key)
) STRICT;
CREATE INDEX unembedded_by_patience ON unembedded (patient, sequence);

CREATE TABLE unextracted (                -- documents with keywords in place of what an instruct model finds in them
    document_key INTEGER PRIMARY KEY REFERENCES documents ON DELETE CASCADE,
    put_off TEXT                          -- why it is left for a later pass; NULL: it waits for its turn
) STRICT;
CREATE INDEX unextracted_waiting ON unextracted (document_key) WHERE put_off IS NULL;

CREATE TABLE relink (                     -- indexed documents whose links by name are still to be found
    document_key INTEGER PRIMARY KEY REFERENCES documents ON DELETE CASCADE
) STRICT;

CREATE TABLE changed_names (              -- names that came or went: what of the owner may be linked otherwise is linked again
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    owner_key INTEGER NOT NULL REFERENCES owners,
    name_key TEXT,                        -- it came: texts that hold it, documents that are called by it
    entity_key INTEGER,                   -- its name went: documents that mention it
    rounds INTEGER NOT NULL DEFAULT 0,    -- how often some of the documents were linked again
    next_partition INTEGER NOT NULL DEFAULT 1,    -- texts from here …
    last_partition INTEGER NOT NULL,              -- … to here
    next_document INTEGER NOT NULL DEFAULT 1,     -- documents from here …
    last_document INTEGER NOT NULL,               -- … to here
    CHECK ((name_key IS NULL) <> (entity_key IS NULL)),
    UNIQUE (owner_key, name_key),
    UNIQUE (owner_key, entity_key)
) STRICT;
CREATE INDEX changed_names_by_rounds ON changed_names (rounds, sequence);

-- ------------------------------------------------------------------------------------------ vectors

CREATE TABLE segments (                   -- files of fixed-width rows; slots beyond the committed count are free space
    segment INTEGER PRIMARY KEY,
    width INTEGER NOT NULL,
    slots INTEGER NOT NULL
) STRICT;

CREATE TABLE vectors (                    -- subject_key: a partition, relationship or predicate, as `purpose` says
    vector_key INTEGER PRIMARY KEY AUTOINCREMENT,
    purpose TEXT NOT NULL CHECK (purpose IN ('model', 'caller', 'relationship', 'predicate',
        'next_model', 'next_relationship', 'next_predicate')),   -- next_: of the model of next_stamp
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
CREATE VIRTUAL TABLE word_places USING fts5vocab (words, instance);   -- each place of each stem; holds nothing itself

-- ------------------------------------------------------------------------------------------ graph

CREATE TABLE entities (
    entity_key INTEGER PRIMARY KEY AUTOINCREMENT,
    entity_id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    name_key TEXT NOT NULL,
    identifier TEXT NOT NULL              -- the path of the code identifier that the name holds, or ''
) STRICT;
CREATE INDEX entities_by_name ON entities (name_key);
CREATE INDEX entities_by_identifier ON entities (identifier) WHERE identifier <> '';

CREATE TABLE entity_words (               -- the words of every entity's name, each once
    word TEXT NOT NULL,
    entity_key INTEGER NOT NULL,
    PRIMARY KEY (word, entity_key)
) STRICT, WITHOUT ROWID;

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
    source TEXT NOT NULL CHECK (source IN ('given', 'extracted', 'keyword', 'name')),
    spelling TEXT NOT NULL,
    linkable INTEGER NOT NULL CHECK (linkable IN (0, 1)),   -- the spelling may be linked by mention
    mentions INTEGER NOT NULL,
    PRIMARY KEY (document_key, entity_key, source)
) STRICT, WITHOUT ROWID;
CREATE INDEX assertions_described ON assertions (document_key) WHERE source IN ('given', 'extracted');
CREATE INDEX assertions_by_entity ON assertions (entity_key, owner_key, document_key);
CREATE INDEX assertions_bearing_names ON assertions (entity_key, owner_key) WHERE source <> 'keyword';
CREATE INDEX assertions_linkable ON assertions (entity_key, owner_key) WHERE linkable;

-- What a caller may read of the graph, counted while it changes: adding up every assertion takes seconds once there are millions. A
-- reader is an owner, for its restricted documents, or 0, for available ones: a caller reads those of 0 and its own.
CREATE TABLE entity_readers (             -- how many assertions let a reader see an entity, and the mentions they count
    entity_key INTEGER NOT NULL,
    reader INTEGER NOT NULL,
    assertions INTEGER NOT NULL,
    mentions INTEGER NOT NULL,
    PRIMARY KEY (entity_key, reader)
) STRICT, WITHOUT ROWID;
CREATE INDEX entity_readers_by_mentions ON entity_readers (reader, mentions);

CREATE TABLE entity_counts (              -- entities that a reader sees: for 0 all of them, for an owner those that 0 does not see
    reader INTEGER PRIMARY KEY,
    entities INTEGER NOT NULL
) STRICT;

CREATE TRIGGER assertion_came AFTER INSERT ON assertions BEGIN
    INSERT INTO entity_readers
        SELECT new.entity_key, iif(access = 'available', 0, owner_key), 1, new.mentions
        FROM documents WHERE document_key = new.document_key
        ON CONFLICT DO UPDATE SET assertions = assertions + 1, mentions = mentions + excluded.mentions;
END;
CREATE TRIGGER assertion_changed AFTER UPDATE OF mentions ON assertions BEGIN
    UPDATE entity_readers SET mentions = mentions + new.mentions - old.mentions
        WHERE entity_key = new.entity_key
        AND reader = (SELECT iif(access = 'available', 0, owner_key) FROM documents WHERE document_key = new.document_key);
END;
CREATE TRIGGER assertion_went AFTER DELETE ON assertions BEGIN
    UPDATE entity_readers SET assertions = assertions - 1, mentions = mentions - old.mentions
        WHERE entity_key = old.entity_key
        AND reader = (SELECT iif(access = 'available', 0, owner_key) FROM documents WHERE document_key = old.document_key);
    DELETE FROM entity_readers WHERE entity_key = old.entity_key AND assertions = 0;
END;
CREATE TRIGGER document_access_changed AFTER UPDATE OF access ON documents WHEN old.access <> new.access BEGIN
    INSERT INTO entity_readers
        SELECT entity_key, iif(new.access = 'available', 0, new.owner_key), count(*), sum(mentions)
        FROM assertions WHERE document_key = new.document_key GROUP BY entity_key
        ON CONFLICT DO UPDATE SET assertions = assertions + excluded.assertions, mentions = mentions + excluded.mentions;
    UPDATE entity_readers SET assertions = assertions - was.asserted, mentions = mentions - was.mentioned
        FROM (SELECT entity_key AS key, count(*) AS asserted, sum(mentions) AS mentioned
              FROM assertions WHERE document_key = new.document_key GROUP BY entity_key) AS was
        WHERE entity_key = was.key AND reader = iif(old.access = 'available', 0, old.owner_key);
    DELETE FROM entity_readers WHERE assertions = 0
        AND entity_key IN (SELECT entity_key FROM assertions WHERE document_key = new.document_key);
END;
CREATE TRIGGER entity_reader_came AFTER INSERT ON entity_readers BEGIN
    INSERT INTO entity_counts
        SELECT new.reader, 1 WHERE new.reader = 0
            OR NOT EXISTS (SELECT 1 FROM entity_readers WHERE entity_key = new.entity_key AND reader = 0)
        ON CONFLICT DO UPDATE SET entities = entities + 1;
    UPDATE entity_counts SET entities = entities - 1 WHERE new.reader = 0
        AND reader IN (SELECT reader FROM entity_readers WHERE entity_key = new.entity_key AND reader <> 0);
END;
CREATE TRIGGER entity_reader_went AFTER DELETE ON entity_readers BEGIN
    UPDATE entity_counts SET entities = entities - 1 WHERE reader = old.reader AND (old.reader = 0
        OR NOT EXISTS (SELECT 1 FROM entity_readers WHERE entity_key = old.entity_key AND reader = 0));
    INSERT INTO entity_counts
        SELECT reader, 1 FROM entity_readers WHERE old.reader = 0 AND entity_key = old.entity_key AND reader <> 0
        ON CONFLICT DO UPDATE SET entities = entities + 1;
END;

CREATE TABLE relationship_counts (        -- how many relationships have these readers
    readers TEXT PRIMARY KEY,
    relationships INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER relationship_came AFTER INSERT ON relationships BEGIN
    INSERT INTO relationship_counts VALUES (new.readers, 1) ON CONFLICT DO UPDATE SET relationships = relationships + 1;
END;
CREATE TRIGGER relationship_readers_changed AFTER UPDATE OF readers ON relationships BEGIN
    INSERT INTO relationship_counts VALUES (new.readers, 1) ON CONFLICT DO UPDATE SET relationships = relationships + 1;
    UPDATE relationship_counts SET relationships = relationships - 1 WHERE readers = old.readers;
    DELETE FROM relationship_counts WHERE readers = old.readers AND relationships = 0;
END;
CREATE TRIGGER relationship_went AFTER DELETE ON relationships BEGIN
    UPDATE relationship_counts SET relationships = relationships - 1 WHERE readers = old.readers;
    DELETE FROM relationship_counts WHERE readers = old.readers AND relationships = 0;
END;

CREATE TABLE relationship_assertions (
    document_key INTEGER NOT NULL REFERENCES documents,
    relationship_key INTEGER NOT NULL REFERENCES relationships,
    source TEXT NOT NULL CHECK (source IN ('given', 'extracted', 'derived')),   -- derived: from the other entities
    weight INTEGER NOT NULL,
    PRIMARY KEY (document_key, relationship_key, source)
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
