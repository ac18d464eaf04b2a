package lexvl;

import java.time.LocalDate;
import java.util.List;
import java.util.Map;
import org.apache.lucene.document.BinaryDocValuesField;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.DoubleField;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.FieldType;
import org.apache.lucene.document.LongField;
import org.apache.lucene.document.SortedDocValuesField;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.IndexOptions;
import org.apache.lucene.index.IndexableField;
import org.apache.lucene.util.BytesRef;

/**
 * Rows as Lucene documents, all but their impacts. One document and its fields serve all rows of a thread: that is the
 * cheap way in Lucene.
 */
final class RowFields {
    private final Document document = new Document();
    private final Field id = new StringField("id", "", Field.Store.YES);
    private final Field sortId = new BinaryDocValuesField("id", new BytesRef());
    private final Field text;
    private final Map<String, String> metadata;
    /** Those that every document has. */
    private final List<IndexableField> fixed;

    /** @param metadata the type (keyword, long, double, date) of each key */
    RowFields(boolean text, boolean storeText, boolean vectors, Map<String, String> metadata) {
        this.text = text || storeText ? new Field("text", "", type(text, storeText, false)) : null;
        this.metadata = metadata;
        document.add(id);
        document.add(sortId);
        // Without a term: the impacts follow when the segment is written, Lucene only learns of the field here.
        document.add(new Field("contents", "", type(true, false, vectors)));
        if (this.text != null) {
            document.add(this.text);
        }
        fixed = List.copyOf(document.getFields());
    }

    /** Like Anserini's fields: frequencies, no positions. */
    private static FieldType type(boolean indexed, boolean stored, boolean vectors) {
        FieldType type = new FieldType();
        type.setTokenized(true);
        type.setStored(stored);
        type.setStoreTermVectors(vectors);
        type.setIndexOptions(indexed ? IndexOptions.DOCS_AND_FREQS : IndexOptions.NONE);
        type.freeze();
        return type;
    }

    Document of(ImpactRow row) {
        id.setStringValue(row.id);
        sortId.setBytesValue(new BytesRef(row.id));
        if (text != null) {
            text.setStringValue(row.contents);
        }
        if (!metadata.isEmpty()) {
            document.clear();
            fixed.forEach(document::add);
            for (int i = 0; i < row.keys.size(); i++) {
                add(row.keys.get(i), row.values.get(i));
            }
        }
        return document;
    }

    private void add(String key, Object value) {
        String name = "meta." + key;
        switch (metadata.get(key)) {
            case "long" -> document.add(new LongField(name, (Long) value, Field.Store.NO));
            case "double" -> document.add(new DoubleField(name, ((Number) value).doubleValue(), Field.Store.NO));
            case "date" -> document.add(new LongField(name, LocalDate.parse((String) value).toEpochDay(), Field.Store.NO));
            default -> {
                document.add(new StringField(name, (String) value, Field.Store.NO));
                document.add(new SortedDocValuesField(name, new BytesRef((String) value)));
            }
        }
    }
}
